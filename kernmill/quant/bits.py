"""Bit packing as Tensor expressions: bytes to numbers and numbers to bytes, as block types need them.

A byte is uint8 and the last axis runs over bytes. `words` is the only function that combines bytes to wider numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import DType, dtypes

from ..methods.elementwise import where
from ..methods.movement import cat
from ..tensor import Tensor

__all__ = ["half", "half_bytes", "lookup", "pack", "pack_threes", "threes", "unpack", "words"]


def words(x: Tensor, dtype: DType) -> Tensor:
    """Little-endian uint16 or uint32 numbers: [.., n * size] bytes to [.., n]."""
    parts = x.unflatten(-1, (x.shape[-1] // dtype.size_bytes, dtype.size_bytes)).cast(dtype)
    result = parts[..., 0]
    for number in range(1, dtype.size_bytes):
        result = result | parts[..., number] << 8 * number
    return result


def half(x: Tensor) -> Tensor:
    """float16 numbers as float32: [.., 2 * n] bytes to [.., n]."""
    return words(x, dtypes.uint16).bitcast(dtypes.float16).float()


def half_bytes(x: Tensor) -> Tensor:
    """Numbers rounded to float16, as bytes: [.., n] to [.., 2 * n]."""
    bits = x.half().bitcast(dtypes.uint16).unsqueeze(-1)
    return (bits >> _steps(2, 8, dtypes.uint16)).cast(dtypes.uint8).flatten(-2)


def unpack(x: Tensor, bits: int, group: int) -> Tensor:
    """Unpack quants of 1, 2 or 4 bits: [.., n] bytes to [.., n * 8 // bits] quants in uint8.

    The bytes are in groups. The lowest bits of all bytes of a group are its first quants, the next bits the next ones.
    """
    parts = x.unflatten(-1, (x.shape[-1] // group, 1, group))
    return (parts >> _steps(8 // bits, bits).unsqueeze(-1) & (1 << bits) - 1).flatten(-3)


def pack(codes: Tensor, bits: int, group: int) -> Tensor:
    """The inverse of `unpack`; no code has more bits."""
    planes = 8 // bits
    parts = codes.cast(dtypes.uint8).unflatten(-1, (codes.shape[-1] // planes // group, planes, group))
    return (parts << _steps(planes, bits).unsqueeze(-1)).sum(-2, dtype=dtypes.uint8).flatten(-2)


def pack_threes(codes: Tensor) -> Tensor:
    """Pack quants of 3 bits, two runs of 16 in three words: [.., n] to [.., n * 3 // 8] bytes.

    Three words of one run are in the low bits, three of the other above them. The remaining bits have the fourth words:
    the low bits of one in the first word, of the other in the second, and high bits in the third.
    """
    runs = codes.unflatten(-1, (codes.shape[-1] // 32, 2, 4, 4))
    low, high = runs[..., 0, :, :], runs[..., 1, :, :]
    last, other = low[..., 3:, :], high[..., 3:, :]
    rest = cat([last << 6, other << 6, last >> 2 << 6 | other >> 2 << 7], axis=-2)
    return (low[..., :3, :] | high[..., :3, :] << 3 | rest).flatten(-3)


def threes(x: Tensor) -> Tensor:
    """The inverse of `pack_threes`."""
    first, second, third = x.unflatten(-1, (x.shape[-1] // 12, 1, 3, 4)).split(1, axis=-2)
    run, word = Tensor.arange(2).reshape(2, 1, 1), Tensor.arange(4).unsqueeze(-1)
    three = where(word.eq(0), first, where(word.eq(1), second, third))  # all are loaded, so that no load has a gate
    low = where(word.eq(3), (first >> 6 | third >> 4 & 4) & 7, three & 7)
    high = where(word.eq(3), (second >> 6 | third >> 5 & 4) & 7, three >> 3 & 7)
    return where(run.eq(0), low, high).flatten(-4)


def lookup(codes: Tensor, table: Sequence[float], dtype: DType = dtypes.int8) -> Tensor:
    """Return table[code] for quants below its length: selections between constants, one level per bit, without a
    table in memory."""
    level: list[Tensor | float] = list(table)
    bit = 1
    while len(level) > 1:
        is_set = (codes & bit).ne(0)
        pairs = zip(level[::2], [*level[1::2], *level[-1:]] if len(level) % 2 else level[1::2], strict=True)
        level = [_choice(is_set, high, low, dtype) for low, high in pairs]
        bit *= 2
    (found,) = level
    assert isinstance(found, Tensor)
    return found


def _choice(condition: Tensor, yes: Tensor | float, no: Tensor | float, dtype: DType) -> Tensor:
    yes, no = (v if isinstance(v, Tensor) else Tensor(v, dtype) for v in (yes, no))
    return where(condition, yes, no)


def _steps(count: int, step: int, dtype: DType = dtypes.uint8) -> Tensor:
    """0, step, 2 * step, .."""
    return Tensor.arange(count, dtype=dtype) * step
