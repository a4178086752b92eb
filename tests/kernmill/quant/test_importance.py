"""Importance matrices: files of both formats, blocks whose weighted errors are smaller, and files of other models."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.quant import BLOCKS
from kernmill.quant.importance import Columns, Importance, read, save
from tests.kernmill.against import only_on

from . import against

on_device = only_on("LLVM")  # that the devices agree is tested elsewhere
NAMES = [name for name, block in BLOCKS.items() if block.weighs and not block.looked_up]


def example() -> Importance:
    sums = np.array([[2.0, 4, 6], [0, 0, 0]])
    return Importance({"blk.0.ffn_up_exps.weight": Columns(sums, np.array([2.0, 0]))}, ["a.txt"], 3, 512)


def old_file(name: bytes = b"blk.0.attn_q.weight", calls: int = 4, count: int = 3) -> bytes:
    values = struct.pack("<3f", 4, 8, 12)
    return (
        struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", calls, count) + values + struct.pack("<ii", 4, 0)
    )


def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    """Its tensors have llama.cpp's names, and the package reads them."""
    save(tmp_path / "m.gguf", example())
    found = read(tmp_path / "m.gguf")
    assert (found.texts, found.chunks, found.size) == (["a.txt"], 3, 512)
    weights = found.weights("blk.0.ffn_up_exps.weight", (2, 5, 3))
    np.testing.assert_array_equal(weights, [[1, 2, 3], [1, 1, 1]])
    package = pytest.importorskip("gguf").GGUFReader(tmp_path / "m.gguf")
    shapes = {tensor.name: [*map(int, tensor.shape)] for tensor in package.tensors}
    assert shapes == {"blk.0.ffn_up_exps.weight.in_sum2": [3, 2], "blk.0.ffn_up_exps.weight.counts": [1, 2]}
    assert package.get_field("general.type").contents() == "imatrix"


def test_the_old_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.dat").write_bytes(old_file())
    np.testing.assert_array_equal(read(tmp_path / "m.dat").weights("blk.0.attn_q.weight", (9, 3)), [[1, 2, 3]])


@pytest.mark.parametrize("name", [*NAMES, "IQ1_S", "IQ2_XXS", "IQ3_S"])
def test_weighted_errors_are_smaller(name: str) -> None:
    """Of columns whose importance differs as in real models: by powers of ten."""
    if BLOCKS[name].looked_up:
        pytest.importorskip("gguf")
    block, chance = BLOCKS[name], np.random.default_rng(6)
    x = chance.standard_normal((4, block.values)).astype(np.float32)
    importance = np.broadcast_to(np.exp(2 * chance.standard_normal(block.values)).astype(np.float32), x.shape).copy()
    plain, weighted = (
        float((importance * (block.decode(block.encode(Tensor(x), given)).numpy() - x) ** 2).sum())
        for given in (None, Tensor(importance))
    )
    assert weighted < 0.95 * plain
    same = block.decode(block.encode(Tensor(x), Tensor(np.ones_like(x)))).numpy()
    assert np.square(same - x).mean() < 1.1 * np.square(block.decode(block.encode(Tensor(x))).numpy() - x).mean()


@pytest.mark.parametrize("name", NAMES)
def test_special_values_with_importance(name: str) -> None:
    block, x = BLOCKS[name], against.weights(name)
    importance = np.abs(np.random.default_rng(2).standard_normal(x.shape)).astype(np.float32)
    importance[9], importance[10, ::2] = 0, 0
    back = block.decode(block.encode(Tensor(x), Tensor(importance))).numpy()
    assert np.isfinite(back).all()
    np.testing.assert_array_equal(back[0], 0)
    np.testing.assert_allclose(back[1], 1, rtol=0.1)
    assert np.abs(back[9] - x[9]).max() < 2


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "m"
    good = old_file()
    for content, message in (
        (b"", "at byte 0: the number of matrices is not in the file"),
        (b"abcdefgh", "the length of a name is not in the file|a name is not in the file"),
        (good[:20], "a name is not in the file"),
        (good[:-12], "the values of a matrix are not in the file"),
        (old_file(count=-3), "the values of a matrix are not in the file"),
        (struct.pack("<i", 0), "it has no columns of matrices"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            read(path)
    with pytest.raises(FormatError, match=r"has 6 columns, and the matrix of shape \(5, 3\) needs 3: .* another model"):
        example().weights("blk.0.ffn_up_exps.weight", (5, 3))
    bad = Importance({"a.weight": Columns(np.array([[1.0, np.nan]]), np.ones(1))}, where="m")
    with pytest.raises(FormatError, match=r"m: 'a\.weight' has values that are not finite squares"):
        bad.weights("a.weight", (5, 2))
