"""`kernmill conformance --device NAME`: the op table on a device, all dtypes, some shapes, against the evaluator.

For authors of devices outside of this repository: no tests, no checkout, a minute at most. The score is by group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernmill.ir import (
    Context,
    DType,
    Op,
    OpGroup,
    Ops,
    Progress,
    UOp,
    assign,
    dtypes,
    elementwise,
    evaluate,
    expand,
    pad,
    permute,
    reduce_axes,
    reshape,
    round_bfloat16,
    shrink,
    strided,
    take,
    unwindow,
    window,
)
from kernmill.runtime import download, get_device, realize, upload

from . import device_parts

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Case", "cases", "run"]

FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
INTS = tuple(d for d in dtypes.data if d.is_int)
BOOL = (dtypes.bool,)
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (3, 33))
ULPS = 8.0  # between two good libraries; a sum adds up more than one rounding
ROUNDED = frozenset({Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.POW, Ops.FMA})

# Which dtypes an elementwise op takes.
TAKES: dict[Op, tuple[DType, ...]] = {
    **dict.fromkeys((Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF, Ops.SQRT, Ops.TRUNC,
                     Ops.FLOOR, Ops.CEIL, Ops.ROUND, Ops.DIV, Ops.FMA), FLOATS),
    **dict.fromkeys((Ops.NEG, Ops.ABS, Ops.SUB, Ops.FLOORDIV, Ops.MOD, Ops.POW), (*INTS, *FLOATS)),
    **dict.fromkeys((Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.LT, Ops.LE, Ops.EQ, Ops.NE, Ops.WHERE), dtypes.data),
    **dict.fromkeys((Ops.AND, Ops.OR, Ops.XOR), (*BOOL, *INTS)),
    **dict.fromkeys((Ops.SHL, Ops.SHR), INTS),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One expression: made from leaves of these arrays and dtypes."""

    group: str
    name: str
    inputs: tuple[tuple[Array, DType], ...]
    build: Callable[[Sequence[UOp]], UOp]
    ulps: float = 0.0  # 0: every bit


def values(dtype: DType, shape: Sequence[int], seed: int) -> Array:
    """Ordinary numbers with ties, zeros, and for floats inf and nan."""
    import numpy as np

    count = int(np.prod(shape))
    rng = np.random.default_rng([seed, count, dtype.bits])
    if dtype.is_bool:
        return (rng.random(count) < 0.5).reshape(shape)
    if dtype.is_int:
        return rng.integers(max(int(dtype.min), -100), 101, count).astype(dtype.name).reshape(shape)
    array = np.round(rng.normal(0, 3, count), 2)
    if count > 8:
        array[[0, 3, 5, 6]] = [np.nan, np.inf, -np.inf, -0.0]
    kind = np.float32 if dtype is dtypes.bfloat16 else np.dtype(dtype.name)
    array = array.astype(kind)
    return (round_bfloat16(array) if dtype is dtypes.bfloat16 else array).reshape(shape)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _elementwise()
    yield from _conversions()
    yield from _reductions()
    yield from _movements()
    yield from _tensors()


def _elementwise() -> Iterator[Case]:
    for op, taken in TAKES.items():
        for dtype in taken:
            for shape in SHAPES:
                inputs = [(values(dtype, shape, seed), dtype) for seed in range(op.arity or 0)]
                if op is Ops.WHERE:
                    inputs[0] = (values(dtypes.bool, shape, 9), dtypes.bool)
                if op in (Ops.POW, Ops.SHL, Ops.SHR) and dtype.is_int:
                    inputs[1] = (abs(inputs[1][0]) % 9, dtype)
                ulps = ULPS if op in ROUNDED and dtype.is_float else 0.0
                ulps = ULPS if op in (Ops.FLOORDIV, Ops.MOD) and dtype.is_float else ulps
                yield Case(op.group.value, f"{op.name} {dtype.name} {shape}", tuple(inputs), _apply(op), ulps)


def _apply(op: Op) -> Callable[[Sequence[UOp]], UOp]:
    return lambda leaves: elementwise(op, *leaves)


def _conversions() -> Iterator[Case]:
    for source in dtypes.data:
        for target in dtypes.data:
            array = values(source, (8,), 1)  # no inf and nan: what they are as ints is not said
            if source.is_float and target.is_int and not target.min:
                array = abs(array)
            yield Case("convert", f"CAST {source.name} to {target.name}", ((array, source),), _cast(target))
            if source.bits == target.bits and source is not target:
                yield Case("convert", f"BITCAST {source.name} to {target.name}", ((array, source),), _bitcast(target))


def _cast(target: DType) -> Callable[[Sequence[UOp]], UOp]:
    return lambda leaves: leaves[0].cast(target)


def _bitcast(target: DType) -> Callable[[Sequence[UOp]], UOp]:
    return lambda leaves: leaves[0].bitcast(target)


def _reductions() -> Iterator[Case]:
    import numpy as np

    for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR):
        for dtype in TAKES[op]:
            if dtype.is_float and dtype.bits < 32 and op in (Ops.ADD, Ops.MUL):
                continue  # the front end sums half types in float32
            for axes in ((0,), (1,), (0, 1)):
                array = values(dtype, (5, 37), 3)
                if dtype.is_float and op in (Ops.ADD, Ops.MUL):  # what neither cancels nor leaves the range
                    array = (0.75 + np.arange(185).reshape(5, 37) % 5 / 8).astype(dtype.name)
                ulps = 64.0 if op in (Ops.ADD, Ops.MUL) and dtype.is_float else 0.0
                yield Case(
                    "reduction", f"REDUCE {op.name} {dtype.name} {axes}", ((array, dtype),), _fold(op, axes), ulps
                )


def _fold(op: Op, axes: tuple[int, ...]) -> Callable[[Sequence[UOp]], UOp]:
    return lambda leaves: reduce_axes(leaves[0], op, axes)


MOVEMENTS: dict[str, Callable[[UOp], UOp]] = {
    "RESHAPE": lambda x: reshape(x, (6, 10)),
    "EXPAND": lambda x: expand(reshape(x, (3, 1, 20)), (3, 4, 20)),
    "PERMUTE": lambda x: permute(x, (1, 0)),
    "PAD": lambda x: pad(x, [(1, 2), (0, 3)]),
    "SHRINK": lambda x: shrink(x, [(1, 3), (2, 19)]),
    "STRIDE": lambda x: strided(x, (-1, 3)),
    "WINDOW": lambda x: window(x, 1, 3, 2, 2),
    "UNWINDOW": lambda x: unwindow(window(x, 1, 3, 2, 2), 1, 20, 2, 2),
}


def _movements() -> Iterator[Case]:
    for name, move in MOVEMENTS.items():
        for dtype in dtypes.data:
            yield Case("movement", f"{name} {dtype.name}", ((values(dtype, (3, 20), 5), dtype),), _moved(move))


def _moved(move: Callable[[UOp], UOp]) -> Callable[[Sequence[UOp]], UOp]:
    return lambda leaves: UOp(Ops.CONTIGUOUS, leaves[0].dtype, (move(leaves[0]),))


def _tensors() -> Iterator[Case]:
    import numpy as np

    index = (np.array([2, 0, 0, 1], np.int64), dtypes.int64)
    for dtype in dtypes.data:
        table = (values(dtype, (3, 20), 6), dtype)
        part = (values(dtype, (2, 5), 7), dtype)
        yield Case("tensor", f"TAKE {dtype.name}", (table, index), lambda leaves: take(leaves[0], leaves[1], 0))
        yield Case("tensor", f"ASSIGN {dtype.name}", (table, part), _assigned)


def _assigned(leaves: Sequence[UOp]) -> UOp:
    return assign(leaves[0], leaves[1], ((1, 3, 1), (2, 17, 3)))


def check(case: Case, device: str) -> str:
    """Return what is wrong, or an empty string."""
    import numpy as np

    try:
        leaves = [_leaf(array, dtype, device) for array, dtype in case.inputs]
        root = case.build(leaves)
        arrays = {_memory(leaf): array.reshape(-1).copy() for leaf, (array, _) in zip(leaves, case.inputs, strict=True)}
        want = evaluate(root, arrays)
        realize([root])
        if device.partition(":")[0] == "NULL":
            return ""
        got = _read(root)
    except Exception as error:  # the score goes on; the sentence says which case
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    with np.errstate(all="ignore"):
        wide = want.astype(np.float64) if root.dtype.is_float else want
        mine = got.astype(np.float64) if root.dtype.is_float else got
        equal = (mine == wide) | ((mine != mine) & (wide != wide))
        if case.ulps and root.dtype.is_float:
            near = root.dtype.epsilon * np.abs(wide) * case.ulps + 1e-37
            equal |= np.abs(mine - wide) <= near
    wrong = np.argwhere(~equal)
    if not len(wrong):
        return ""
    index = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {equal.size} differ, first at {index}: {mine[index]}, not {wide[index]}"


def _leaf(array: Array, dtype: DType, device: str) -> UOp:
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype is dtypes.bfloat16:
        flat = (flat.view(np.uint32) >> 16).astype(np.uint16)
    return reshape(upload(flat, dtype, device), array.shape)


def _memory(leaf: UOp) -> UOp:
    while leaf.op is not Ops.BUFFER:
        leaf = leaf.src[0]
    return leaf


def _read(root: UOp) -> Array:
    """Return the values that the device computed, bfloat16 as float32."""
    import numpy as np

    found: Array = np.array(download(root))
    if root.dtype is dtypes.bfloat16:
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return found.reshape([int(str(size)) for size in root.shape])


def run(device: str, shown: int = 20) -> bool:
    """Print the score by group, and the first failures; whether there were none.

    Raises:
        DeviceError: no such device.
    """
    get_device(device)
    score: dict[str, list[int]] = {}
    failures: list[str] = []
    with Context(DEVICE=device, CACHE="0"):  # what an earlier version of the device has stored is not judged
        with Progress(f"conformance of {device}", unit="case") as bar:
            for case in cases():
                text = check(case, device)
                good, total = score.get(case.group, [0, 0])
                score[case.group] = [good + (not text), total + 1]
                if text:
                    failures.append(f"{case.name}: {text}")
                bar.advance()
        parts = device_parts.failures(device)
    print(f"{device}: the op table against the evaluator")
    for group in (g.value for g in OpGroup if g.value in score):
        good, total = score[group]
        print(f"  {group:10} {good:5} of {total:5}")
    for line in failures[:shown]:
        print(f"  {line}")
    if len(failures) > shown:
        print(f"  and {len(failures) - shown} more")
    good, total = (sum(column) for column in zip(*score.values(), strict=True))
    print(f"  {good} of {total} right")
    print(f"{device}: memory, copies, order of work")
    for name in device_parts.PARTS:
        print(f"  {name:14} {parts.get(name, 'right')}")
    return not failures and not parts
