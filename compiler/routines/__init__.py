"""Routines by name: what a ROUTINE node computes, as loops whose statements run in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernmill.ir import AxisKind, Target, UOp

from . import eigen, factor, fourier, orthogonal
from .builder import Routine
from .eigen import eigh_count, svd_count, tridiagonal_count
from .orthogonal import qr_count

__all__ = ["ROUTINES", "Routine", "eigh_count", "expand_routine", "qr_count", "svd_count", "tridiagonal_count"]

ROUTINES: dict[str, Callable[..., None]] = {
    "cholesky": factor.cholesky, "lu": factor.lu, "solve": factor.solve, "triangular": factor.triangular,
    "qr": orthogonal.qr, "svd": eigen.svd, "eigh": eigen.eigh, "eigh_large": eigen.eigh_large,
    "fft": fourier.fft,
}  # fmt: skip


def expand_routine(ast: UOp, node: UOp, target: Target) -> list[UOp]:
    """Linear UOps of the kernel of a routine."""
    name, _, batch, interleaved, *sizes = node.arg
    params = [ast.src[0].src[0].src[0], *(load.src[0].src[0] for load in node.src)]
    k = Routine(target, params, [int(p.arg[1]) // batch for p in params], batch, interleaved)
    body: Any = ROUTINES[name]
    kind = AxisKind.GLOBAL if target.group_items else AxisKind.THREAD if target.has_threads else AxisKind.LOOP
    if batch == 1:
        k.base = k.as_index(0)
        body(k, *sizes)
        return k.linear()
    lanes = k.vector if interleaved else 1
    whole, rest = divmod(batch, lanes)
    for count, width, first in ((whole, lanes, 0), (rest, 1, whole)):
        if count:
            is_slice = bool(whole and rest and kind is AxisKind.THREAD)
            with k.loop(count, kind, first if is_slice else None) as i:
                k.lanes = width
                k.base = i * width + first * lanes if first else i * width
                body(k, *sizes)
    return k.linear()
