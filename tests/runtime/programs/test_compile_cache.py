import logging
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernmill.ir import Context
from kernmill.runtime import compile_cache

KEY = compile_cache.cache_key("a kernel")
is_posix = pytest.mark.skipif(os.name != "posix", reason="permissions and signals of POSIX")


@pytest.fixture
def cache(tmp_path: Path) -> compile_cache.CompileCache:
    return compile_cache.CompileCache(str(tmp_path / "cache"))


def file_of(cache: compile_cache.CompileCache, key: str = KEY) -> Path:
    return Path(str(cache.folder)) / "v2" / "llvm" / key[:2] / key


def test_round_trip(cache: compile_cache.CompileCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, b"\x00binary\xff", {"kernel": "add", "flops": 12})
    entry = cache.get(KEY)
    assert entry is not None
    assert entry.payload == b"\x00binary\xff"
    assert entry.header == {"kernel": "add", "flops": 12}
    assert (cache.hits, cache.misses, cache.puts) == (1, 1, 1)
    cache.put(KEY, b"", {})
    again = cache.get(KEY)
    assert again is not None
    assert again.payload == b""


def test_keys() -> None:
    assert compile_cache.cache_key("ab", "c") != compile_cache.cache_key("a", "bc")
    assert compile_cache.cache_key("x") == compile_cache.cache_key(b"x")
    with pytest.raises(ValueError, match="64 hex digits"):
        compile_cache.CompileCache(None).get("../../etc/passwd")


@is_posix
def test_folder_and_files_are_private(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"x", {})
    path = file_of(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(str(cache.folder)).stat().st_mode) == 0o700
    assert [item.name for item in path.parent.iterdir()] == [KEY]


@is_posix
def test_folder_open_to_others_is_ignored_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o775)
    with caplog.at_level(logging.WARNING, "kernmill"):
        for _ in range(3):
            cache = compile_cache.CompileCache(str(folder))
            cache.put(KEY, b"x", {})
            assert cache.get(KEY) is None
    assert len(caplog.records) == 1
    assert f"chmod 700 {folder}" in caplog.text
    assert list(folder.iterdir()) == []


@is_posix
def test_folder_of_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert compile_cache.CompileCache(str(folder)).get(KEY) is None
    assert compile_cache.CompileCache(str(folder)).info()["usable"] is False


@pytest.mark.parametrize("at", [0, 9, 13, 20, 30, 60, 70, -40, -1])
def test_damage_is_a_miss_and_deletes_the_file(cache: compile_cache.CompileCache, at: int) -> None:
    cache.put(KEY, b"payload" * 10, {"kernel": "add"})
    path = file_of(cache)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, b"new", {})
    entry = cache.get(KEY)
    assert entry is not None
    assert entry.payload == b"new"


def test_every_truncation_is_a_miss(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"payload", {"kernel": "add"})
    path = file_of(cache)
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        assert cache.get(KEY) is None
    path.write_bytes(raw + b"x")
    assert cache.get(KEY) is None


def test_a_file_under_another_key_is_damaged(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"x", {})
    other = compile_cache.cache_key("another kernel")
    file_of(cache, other).parent.mkdir(parents=True, exist_ok=True)
    file_of(cache, other).write_bytes(file_of(cache).read_bytes())
    assert cache.get(other) is None
    assert cache.get(KEY) is not None


def test_entries_of_an_older_version_are_not_damaged(cache: compile_cache.CompileCache) -> None:
    """When the digest of entries changed, all that there were read as damaged."""
    cache.put(KEY, b"x", {})
    older = Path(str(cache.folder)) / "v1" / "llvm" / KEY[:2] / KEY
    older.parent.mkdir(parents=True)
    older.write_bytes(file_of(cache).read_bytes().replace(b"\2\0\0\0", b"\1\0\0\0", 1))
    info = cache.info()
    assert info["entries"] == 2
    assert cache.verify() == (1, 1, 0)
    assert not older.exists()
    assert cache.get(KEY) is not None


@is_posix
def test_a_link_is_not_followed(cache: compile_cache.CompileCache, tmp_path: Path) -> None:
    cache.put(KEY, b"x", {})
    elsewhere = tmp_path / "elsewhere"
    file_of(cache).rename(elsewhere)
    file_of(cache).symlink_to(elsewhere)
    assert cache.get(KEY) is None
    assert elsewhere.exists()


def test_verify_and_clear(cache: compile_cache.CompileCache) -> None:
    keys = [compile_cache.cache_key(str(n)) for n in range(10)]
    for key in keys:
        cache.put(key, b"x" * 100, {})
    for key in keys[:3]:
        file_of(cache, key).write_bytes(b"nonsense")
    (file_of(cache).parent).mkdir(exist_ok=True)
    assert cache.verify() == (7, 0, 3)
    assert cache.verify() == (7, 0, 0)
    assert cache.info()["entries"] == 7
    assert cache.clear() == 7
    assert cache.info()["size_bytes"] == 0


def test_writing_may_fail(
    cache: compile_cache.CompileCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(KEY, b"old", {})

    def full_disk(path: str, raw: bytes) -> None:
        Path(path).write_bytes(raw[:1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "kernmill"):
        patch.setattr(compile_cache, "_write_file", full_disk)
        for n in range(3):
            cache.put(compile_cache.cache_key(str(n)), b"new", {})
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert cache.puts == 1
    assert cache.get(KEY) is not None
    assert not list(Path(str(cache.folder)).rglob(".tmp-*"))


def test_read_only_reads_and_never_writes(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"x", {})
    reader = compile_cache.CompileCache(cache.folder, read_only=True)
    assert reader.get(KEY) is not None
    reader.put(compile_cache.cache_key("2"), b"y", {})
    file_of(cache).write_bytes(b"damaged")
    assert reader.get(KEY) is None
    assert reader.clear() == 1
    assert file_of(cache).exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = compile_cache.CompileCache(str(folder))
        cache.put(KEY, b"x", {})
        assert cache.get(KEY) is None
        assert cache.verify() == (0, 0, 0)


def test_off() -> None:
    cache = compile_cache.CompileCache(None)
    cache.put(KEY, b"x", {})
    assert cache.get(KEY) is None
    assert cache.info()["entries"] == 0


def test_settings(tmp_path: Path) -> None:
    with Context(CACHE="0"):
        assert compile_cache.default_cache().folder is None
    with Context(CACHE="ro", CACHE_DIR=str(tmp_path), CACHE_MAX_MB=3):
        cache = compile_cache.default_cache()
        assert (cache.read_only, cache.folder, cache.max_bytes) == (True, str(tmp_path), 3 << 20)
        assert compile_cache.default_cache() is cache


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the XDG rule by hand")
def test_default_folder_is_platformdirs(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    for value in (None, "", "relative", "/some/where"):
        if value is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", value)
        if value != "relative":  # the specification: a relative path is invalid and ignored
            assert compile_cache.default_cache_folder() == platformdirs.user_cache_dir("kernmill", appauthor=False)
        assert os.path.isabs(compile_cache.default_cache_folder())


def test_size_cap_drops_the_least_recently_used(tmp_path: Path) -> None:
    cache = compile_cache.CompileCache(str(tmp_path / "cache"), max_bytes=40 * 4096)
    keys = [compile_cache.cache_key(str(n)) for n in range(60)]
    for age, key in enumerate(keys):
        cache.put(key, b"x" * 1000, {})
        if file_of(cache, key).exists():
            os.utime(file_of(cache, key), (time.time() - 90_000 + age,) * 2)
        if age == 5:
            kept = key
        if age > 5 and age % 5 == 0:
            os.utime(file_of(cache, kept))
    cache.evict()
    entries = cache.info()["entries"]
    assert isinstance(entries, int)
    assert 30 <= entries <= 40
    assert cache.get(kept) is not None
    assert cache.get(keys[-1]) is not None
    assert cache.get(keys[0]) is None


def test_a_hit_renews_an_old_time_stamp_only(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"x", {})
    recent = time.time() - 100
    os.utime(file_of(cache), (recent, recent))
    cache.get(KEY)
    assert abs(file_of(cache).stat().st_mtime - recent) < 1
    os.utime(file_of(cache), (recent - 10_000,) * 2)
    cache.get(KEY)
    assert file_of(cache).stat().st_mtime > recent


def test_stale_temporary_files_go(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, b"x", {})
    fresh, stale = (file_of(cache).parent / f".tmp-{name}" for name in ("fresh", "stale"))
    for path in (fresh, stale):
        path.write_bytes(b"half")
    os.utime(stale, (time.time() - 10_000,) * 2)
    assert cache.verify() == (1, 0, 0)
    assert fresh.exists()
    assert not stale.exists()
    cache.clear()
    assert not fresh.exists()


def payload_for(n: int) -> bytes:
    return random.Random(n).randbytes(2000 + n * 37)


def hammer(folder: str, seed: int, rounds: int, max_bytes: int) -> int:
    """Puts and gets; how many entries came back wrong."""
    cache = compile_cache.CompileCache(folder, max_bytes)
    chance = random.Random(seed)
    wrong = 0
    for _ in range(rounds):
        n = chance.randrange(30)
        key = compile_cache.cache_key(str(n))
        entry = cache.get(key)
        if entry is None:
            cache.put(key, payload_for(n), {"n": n})
        elif entry.payload != payload_for(n) or entry.header != {"n": n}:
            wrong += 1
    return wrong


def test_many_processes(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        wrong = pool.starmap(hammer, [(folder, seed, 150, 20 * 4096) for seed in range(3)])
    assert wrong == [0, 0, 0]
    assert compile_cache.CompileCache(folder).verify()[1:] == (0, 0)


def test_many_threads(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda seed=seed: wrong.append(hammer(folder, seed, 100, 1 << 20))) for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0, 0, 0]


STORM = """
import os, sys
from kernmill.runtime import compile_cache
cache = compile_cache.CompileCache(sys.argv[1], 1 << 20)
print("ready", flush=True)
n = 0
while True:
    n += 1
    cache.put(compile_cache.cache_key(str(n % 200)), bytes([n % 256]) * 20000, {"n": n})
"""


@is_posix
def test_killed_writers_leave_a_usable_cache(tmp_path: Path) -> None:
    folder = str(tmp_path / "cache")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for round_ in range(6):
        with subprocess.Popen([sys.executable, "-c", STORM, folder], env=environment, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.005 + 0.007 * round_)
            writer.send_signal(signal.SIGKILL)
    whole, _, damaged = compile_cache.CompileCache(folder).verify()
    assert whole > 0
    assert damaged == 0


def test_a_hit_is_quick(cache: compile_cache.CompileCache) -> None:
    cache.put(KEY, bytes(6000), {"kernel": "add"})
    best = 1.0
    for _ in range(200):
        start = time.perf_counter()
        cache.get(KEY)
        best = min(best, time.perf_counter() - start)
    assert best < 100e-6
