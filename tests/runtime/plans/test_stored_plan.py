"""Entries of the cache with a right checksum and wrong content, and what is no regular file: a miss, never an error."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernmill.runtime import compile_cache, stored_plan

_PROGRAM = """
import numpy as np
from kernmill import Tensor
a = np.arange(300.0, dtype=np.float32).reshape(20, 15) / 99
got = (Tensor(a) @ Tensor(a.T)).softmax(1) + Tensor(a).sum(1)
e = np.exp(a @ a.T - (a @ a.T).max(1, keepdims=True))
assert np.allclose(got.numpy(), e / e.sum(1, keepdims=True) + a.sum(1), atol=1e-5)
print("right")
"""
_WRONG: list[Any] = [None, -1, 1 << 70, 1e400, -0.5, "x", "", [], {}, True, [[]], {"a": 1}, "sss", 3]
is_posix = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


def _run(folder: Path) -> None:
    env = {**os.environ, "CACHE_DIR": str(folder), "CACHE": "1", "COMPILER_PROCESS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.stderr) == ("right\n", "")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and len(path.name) == 64)


def _rewrite(path: Path, header: Any, payload: bytes) -> None:
    """The entry with other content and its digest made again."""
    text = json.dumps(header).encode()
    head = compile_cache._HEAD.pack(b"KMCACHE\0", 2, len(text), len(payload), bytes.fromhex(path.name))
    path.write_bytes(head + text + payload + compile_cache._digest(head + text + payload).digest())


def _entry(path: Path) -> compile_cache.CacheEntry:
    found = compile_cache._decode(path.read_bytes(), path.name)
    assert found is not None
    return found


def _mutated(value: Any, draw: random.Random) -> Any:
    """One value somewhere inside is another one, or missing."""
    if isinstance(value, dict | list) and value and draw.random() < 0.9:
        keys = [*value] if isinstance(value, dict) else [*range(len(value))]
        key, copy = draw.choice(keys), value.copy()
        if draw.random() < 0.15:
            del copy[key]
        else:
            copy[key] = _mutated(value[key], draw)
        return copy
    return draw.choice([wrong for wrong in _WRONG if wrong != value])


def test_every_header_is_checked(tmp_path: Path) -> None:
    _run(tmp_path)
    for header in ({}, {"threads": "1"}, {"threads": -3, "work_ns": 1.0, "touched": ""}):
        for path in _files(tmp_path / "v2" / "llvm"):
            _rewrite(path, header, _entry(path).payload)
        _run(tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_entries_are_misses(seed: int, stored: Path, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for path in _files(stored):
        new = tmp_path / path.relative_to(stored)
        new.parent.mkdir(0o700, parents=True, exist_ok=True)
        entry = _entry(path)
        if "plans" in path.parts:
            payload = json.dumps(_mutated(json.loads(entry.payload), draw)).encode()
            _rewrite(new, entry.header, payload)
        elif draw.random() < 0.3:
            _rewrite(new, entry.header, entry.payload[: draw.randrange(len(entry.payload))] if entry.payload else b"?")
        else:
            _rewrite(new, _mutated(entry.header, draw), entry.payload)
        new.chmod(0o600)
    _run(tmp_path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    _run(folder)
    return folder


def test_mutated_plans_are_refused(stored: Path) -> None:
    """Fast, so that there are many: the check itself, on every plan of the program."""
    draw = random.Random(5)
    for path in _files(stored / "v2" / "plans"):
        plan = json.loads(_entry(path).payload)
        stored_plan.check_plan(plan, ["LLVM"] * 9, ["LLVM"], len(plan[2]))
        for _ in range(500):
            wrong = _mutated(plan, draw)
            try:
                stored_plan.check_plan(wrong, ["LLVM"] * 9, ["LLVM"], len(plan[2]))
            except (ValueError, TypeError, LookupError, AttributeError):
                continue
            assert all(len(row) in (2, 6) for row in wrong[0])


@is_posix
def test_what_is_no_regular_file_is_a_miss(tmp_path: Path) -> None:
    key = compile_cache.cache_key("a kernel")
    cache = compile_cache.CompileCache(str(tmp_path / "cache"))
    cache.put(key, b"x", {})
    path = tmp_path / "cache" / "v2" / "llvm" / key[:2] / key
    for make in (os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)):
        path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
        make(path)
        assert cache.get(key) is None
        cache.verify()
    path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
    with path.open("wb") as file:
        file.truncate(compile_cache._MOST_BYTES + 1)
    path.chmod(0o600)
    assert cache.get(key) is None


@is_posix
@pytest.mark.parametrize("what", ["entry", "folder", "device", "version"])
def test_what_others_may_write_is_a_miss(what: str, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir(0o755)
    key = compile_cache.cache_key("a kernel")
    compile_cache.CompileCache(str(root)).put(key, b"x", {})
    path = root / "v2" / "llvm" / key[:2] / key
    assert compile_cache.CompileCache(str(root)).get(key) is not None
    where = {"entry": path, "folder": path.parent, "device": path.parents[1], "version": path.parents[2]}[what]
    where.chmod(0o666 if what == "entry" else 0o777)
    assert compile_cache.CompileCache(str(root)).get(key) is None


@is_posix
def test_folders_inside_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key = compile_cache.cache_key("a kernel")
        compile_cache.CompileCache(str(tmp_path / "cache")).put(key, b"x", {})
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "cache").rglob("*") if path.is_dir()]
    assert len(folders) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
