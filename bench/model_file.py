"""GGUF files of real shapes with random weights: what speed is measured on where no model is at hand.

    python -m bench.model_file model.gguf --shape 1B --mix Q4_0 --vocabulary qwen2.gguf

One piece of random values is quantized for each type and repeated through the file, from another place in each tensor.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from .model_shapes import ARCHITECTURES, SHAPES, Row

__all__ = ["random_blocks", "write_model"]

_BLOCKS = 16381  # of a piece: a prime number, so that rows differ
_SPREAD = 0.02


def write_model(
    path: str | os.PathLike[str], shape: str, mix: str, vocabulary: Mapping[str, Any] | None = None
) -> None:
    """Write a file, with tied embeddings unless its row says otherwise; an old one is replaced.

    `mix`: as `kernmill quantize` makes them, or "all Q2_K": every matrix of that type. `vocabulary`: metadata whose
    `tokenizer.` keys are copied, and the embedding has a row for each token: llama.cpp refuses more. Without it the
    file has no vocabulary.
    """
    from kernmill.formats.gguf_types import tensor_type
    from kernmill.formats.gguf_write import NewTensor, write
    from kernmill.llm.arch import Config
    from kernmill.quant.mixes import Mix, mix_named

    single = mix.removeprefix("all ")
    recipe = mix_named(mix) if single == mix else Mix(mix, 0, single, output=single)
    keys = dict(SHAPES[shape])
    (size_key,) = (key for key in keys if key.endswith(".vocab_size"))
    words = {key: value for key, value in (vocabulary or {}).items() if key.startswith("tokenizer.") and value != ()}
    rows = keys[size_key] = len(words.get("tokenizer.ggml.tokens", ())) or keys[size_key]
    config, tensors = Config.of(keys), {}
    sizes = _sizes(config, rows, ARCHITECTURES.get(shape, Row()))
    for number, (name, size) in enumerate(sizes.items()):
        kind = recipe.type_for(name, size, config.layers, is_tied="output.weight" not in sizes) or tensor_type("F32")
        values = partial(_values_of(name), kind.name, kind.nbytes(size), number)
        tensors[name] = NewTensor(kind, size, values)
    metadata = {**keys, "general.name": f"random {shape}", "general.size_label": shape}
    metadata |= {"general.file_type": recipe.file_type} | (words or {"tokenizer.ggml.model": "no_vocab"})
    write(path, metadata, tensors)


def _sizes(config: Any, rows: int, row: Row) -> dict[str, tuple[int, ...]]:
    """Every tensor with its shape: those that the architecture must have, and those of the row."""
    from kernmill.llm.arch import ARCHITECTURES as KINDS

    kind = KINDS[config.name]
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, config.width)}
    if row.has_output:
        found["output.weight"] = (rows, config.width)
    if kind.output_norm:
        found[f"{kind.output_norm}.weight"] = (config.width,)
    found |= {name: (size, config.width) if size else (config.width,) for name, size in row.ends.items()}
    for n in range(config.layers):
        known, needed = kind.names_in(config, n)
        taken = {name: shape for name, shape in known.items() if name in needed or re.fullmatch(row.may_have, name)}
        for joint, parts in kind.fused:
            if joint in parts or joint in row.fused:  # files have these matrices merged
                sizes = [taken.pop(f"{part}.weight") for part in parts]
                taken[f"{joint}.weight"] = (sum(size[0] for size in sizes), config.width)
        found |= {f"blk.{n}.{name}": shape for name, shape in taken.items()}
    return found


def _values_of(name: str) -> Callable[[str, int, int], Iterable[memoryview]]:
    """Norms are ones, decays of states are -1, all else is random."""
    if name.endswith("ssm_a"):
        return partial(_constant, -1.0)
    return partial(_constant, 1.0) if "_norm." in name else _repeated


def _constant(value: float, kind: str, size_bytes: int, number: int) -> list[memoryview]:
    return [np.full(size_bytes // 4, value, np.float32).data.cast("B")]


def _repeated(kind: str, size_bytes: int, number: int) -> Iterator[memoryview]:
    """So many bytes of the piece, from a place that depends on the number of the tensor."""
    piece = _piece(kind)
    block = len(piece) // _BLOCKS
    start = number * 977 % _BLOCKS * block
    while size_bytes:
        part = piece[start : start + size_bytes]
        yield part
        size_bytes -= len(part)
        start = 0


@cache
def _piece(kind: str) -> memoryview:
    """Random values as blocks of a type, or as plain values."""
    from kernmill import Tensor, no_grad
    from kernmill.formats.gguf_types import tensor_type
    from kernmill.quant import BLOCKS, QuantizedTensor
    from kernmill.tensor_bytes import bytes_of

    dtype, count = tensor_type(kind).dtype, tensor_type(kind).values
    if dtype is None and (BLOCKS[kind].write is None or BLOCKS[kind].looked_up):  # a search of codebooks takes long
        return random_blocks(kind, np.random.default_rng(7), (_BLOCKS,)).data.cast("B")
    values = np.random.default_rng(7).standard_normal((_BLOCKS, count)).astype(np.float32) * _SPREAD
    with no_grad():
        made = Tensor(values)
        return bytes_of(made.cast(dtype) if dtype is not None else QuantizedTensor.quantize(made, kind).data)


def random_blocks(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Of a type that is not written, or slowly: random bytes [.., bytes of a block], with scales that suit."""
    from kernmill import Tensor
    from kernmill.quant import block_type

    form = block_type(kind)
    blocks = rng.integers(0, 256, (*shape, form.size_bytes), np.uint8)
    some, exponent = blocks.reshape(-1, form.size_bytes)[:256], 4
    _scale(form.layout, some, exponent)
    factor = _SPREAD / float(form.decode(Tensor(some)).std().item())
    _scale(form.layout, blocks, exponent + math.floor(math.log2(factor)))
    return blocks


def _scale(layout: Mapping[str, int], blocks: np.ndarray[Any, np.dtype[np.uint8]], exponent: int) -> None:
    """Set the exponent of the float16 that all values of a block share; where it has none, nothing."""
    if layout.get("d") == 2:
        place = sum(list(layout.values())[: list(layout).index("d")]) + 1
        blocks[..., place] = blocks[..., place] & 0x83 | exponent << 2
    elif "d" not in layout:  # its bits are the highest ones of the last four numbers
        blocks[..., -1] = blocks[..., -1] & 0x8F | exponent >> 2 << 4
        blocks[..., -3] = blocks[..., -3] & 0x3F | (exponent & 3) << 6


def main(given: Sequence[str] | None = None) -> int:
    """Write a file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.model_file", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.5B")
    parser.add_argument("--mix", default="Q4_0", help="of kernmill quantize, or 'all TYPE' (default %(default)s)")
    parser.add_argument("--vocabulary", metavar="GGUF", help="a file whose tokenizer is taken over")
    arguments = parser.parse_args(given)
    words = None
    if arguments.vocabulary:
        from kernmill.formats import gguf

        words = gguf.read(arguments.vocabulary).metadata
    write_model(arguments.path, arguments.shape, arguments.mix, words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
