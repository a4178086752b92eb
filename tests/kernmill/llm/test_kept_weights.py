"""Kept weights are mapped by the next start; what is damaged, of another file or too large is not used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kernmill.commands.cli import main
from kernmill.formats import gguf
from kernmill.ir import Context
from kernmill.llm import Model, kept_weights

IDS = [1, 260, 261, 262]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHE="1", CACHE_DIR=str(tmp_path / "cache"), KEEP_WEIGHTS_MB=64):
        yield tmp_path / "cache" / "weights"


def logits(path: Path) -> np.ndarray:
    with Model.from_gguf(path, capacity=16) as model:
        return model.next_logits(IDS)


def mapped_names(path: Path) -> int:
    """How many matrices a start would map."""
    return len(kept_weights.KeptWeights(gguf.read(path))._entries)


@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_0"])
def test_a_second_start_maps_them(
    kind: str | None, made: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(kind)
    expected = logits(path)
    (kept,) = folder.iterdir()
    assert mapped_names(path) == 8
    with Context(KEEP_WEIGHTS_MB=0):
        assert np.array_equal(logits(path), expected)
    from kernmill.quant import floats, tensor

    def unused(*_: object) -> None:
        raise AssertionError("a matrix was interleaved again")

    monkeypatch.setattr(floats, "lay_in_pieces", unused)
    monkeypatch.setattr(tensor, "lay_in_pieces", unused)
    written = kept.read_bytes()
    assert np.array_equal(logits(path), expected)
    assert kept.read_bytes() == written


def test_what_is_damaged_is_written_again(made: Callable[..., Path], folder: Path) -> None:
    path = made("Q8_0")
    expected = logits(path)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    header = int.from_bytes(whole[24:32], "little")
    changes = [b"", whole[:20], whole[:-1], b"x" + whole[1:], whole[:40] + b"?" + whole[41:]]
    changes += [whole[: 32 + header - 1] + b" " + whole[32 + header :], whole[:-8] + b"\xff" * 8]
    for bad in changes:
        kept.write_bytes(bad)
        assert mapped_names(path) == 0, bad[:40]
        assert np.array_equal(logits(path), expected)
        assert mapped_names(path) == 8
    assert kept.read_bytes() == whole


def test_a_bit_that_flips_inside_of_a_matrix_is_found_while_the_model_runs(
    made: Callable[..., Path], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    plain = kept_weights.KeptWeights.check_behind
    monkeypatch.setattr(kept_weights.KeptWeights, "check_behind", lambda self: threads.append(plain(self)))
    monkeypatch.setattr(kept_weights, "_SAMPLED", 16)  # the matrices of the tiny model are short
    path = made("Q8_0")
    expected = logits(path)
    (kept,) = folder.iterdir()
    assert np.array_equal(logits(path), expected)
    assert threads[0] is None  # the first start has nothing to check
    threads[1].join(60)  # type: ignore[union-attr]
    assert capsys.readouterr().err == ""
    entry = max(kept_weights.KeptWeights(gguf.read(path))._entries.values(), key=lambda one: one.nbytes)
    raw = bytearray(kept.read_bytes())
    raw[entry.start + entry.nbytes // 2] ^= 4
    kept.write_bytes(raw)
    logits(path)
    threads[2].join(60)  # type: ignore[union-attr]
    assert "has changed on disk: text of this run may be wrong" in capsys.readouterr().err
    assert not kept.exists()
    assert np.array_equal(logits(path), expected)
    assert mapped_names(path) == 8


def test_another_file_is_not_mixed_up(made: Callable[..., Path], folder: Path) -> None:
    path = made("Q8_0")
    logits(path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # behind the bytes that its digest reads
    path.write_bytes(raw)
    os.utime(path, (1, 1))
    assert mapped_names(path) == 0


def test_the_oldest_go_first_and_too_large_ones_are_not_kept(
    made: Callable[..., Path], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for n in range(3):
        files.append(tmp_path / f"{n}.gguf")
        made("Q8_0").rename(files[-1])
        os.utime(files[-1], (n + 1, n + 1))
    logits(files[0])
    size = kept_weights.kept_bytes()
    filler = folder / "old.weights"
    filler.write_bytes(bytes((1 << 20) - size - 100))
    os.utime(filler, (1, 1))
    with Context(KEEP_WEIGHTS_MB=1):
        logits(files[1])
    assert not filler.exists()
    assert [mapped_names(path) for path in files] == [8, 8, 0]
    huge = folder / "huge.weights"
    huge.write_bytes(bytes(8))
    assert kept_weights.clear() == 3
    assert kept_weights.kept_bytes() == 0
    assert capsys.readouterr().err == ""


def test_a_limit_that_is_too_small_is_said(
    made: Callable[..., Path], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_weights.KeptWeights, "write", _with_limit(kept_weights.KeptWeights.write, 1000))
    logits(made("Q8_0"))
    assert "kernmill: the weights are not kept: they take 0 MiB, and KEEP_WEIGHTS_MB is 0." in capsys.readouterr().err
    assert [*folder.iterdir()] == []


def _with_limit(write: Callable[..., None], limit: int) -> Callable[..., None]:
    def limited(self: kept_weights.KeptWeights) -> None:
        self._limit = limit
        write(self)

    return limited


def test_a_folder_that_others_can_write_is_not_used(made: Callable[..., Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    logits(made("Q8_0"))
    assert [*folder.iterdir()] == []


def test_the_option(made: Callable[..., Path], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Context(KEEP_WEIGHTS_MB=0):
        words = ["run", str(made("Q8_0")), "-p", "ab", "-n", "4", "--temp", "0"]
        texts = []
        for more in ([], ["--keep-weights", "64"], ["--keep-weights", "64"]):
            assert main([*words, *more]) == 0
            texts.append(capsys.readouterr().out)
        assert len({*texts}) == 1
        assert len([*folder.iterdir()]) == 1
