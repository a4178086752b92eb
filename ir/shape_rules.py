"""The shape of each tensor op from the shapes of its sources. Legality is checked where nodes are built
(ir/graph.py). Sizes are computed there too: the arg of a movement has the sizes of its result, in normal form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ops import OpGroup, Ops
from .shape import Shape, numel

if TYPE_CHECKING:
    from .uop import UOp

__all__ = ["shape_of"]

_MOVEMENT = OpGroup.MOVEMENT  # found once


def shape_of(node: UOp) -> Shape:
    """Sizes of a tensor node; () for scalars and for everything in a kernel."""
    if node.op.is_elementwise and node.op is not Ops.BITCAST:
        return next(filter(None, [s.shape for s in node.src]), ())
    if node.op.group is _MOVEMENT:
        return _movement_shape(node, node.src[0].shape)
    match node.op:
        case Ops.BUFFER | Ops.PARAM:
            return (node.arg[-1],)
        case Ops.IOTA:
            return (node.arg,)
        case Ops.ROUTINE:
            return (node.arg[1],)
        case Ops.REDUCE if len(node.src) == 1:
            axes = node.arg[1]
            return tuple(1 if axis in axes else size for axis, size in enumerate(node.src[0].shape))
        case Ops.TAKE:
            data, index = (s.shape for s in node.src)
            return data[: node.arg] + index + data[node.arg + 1 :]
        case Ops.BITCAST if node.dtype.bits != node.src[0].dtype.bits and node.src[0].shape:
            shape = node.src[0].shape
            return (*shape[:-1], numel((shape[-1],)) * node.src[0].dtype.bits // node.dtype.bits)
        case Ops.ASSIGN | Ops.CONTIGUOUS | Ops.COPY | Ops.DETACH | Ops.CHECK | Ops.WAIT | Ops.BITCAST:
            return node.src[0].shape
    return ()


def _movement_shape(node: UOp, shape: Shape) -> Shape:
    arg = node.arg
    match node.op:
        case Ops.RESHAPE | Ops.EXPAND:
            return tuple(arg)
        case Ops.PERMUTE:
            return tuple(shape[axis] for axis in arg)
        case Ops.PAD | Ops.SHRINK | Ops.STRIDE:
            return tuple(length for _, length in arg)
        case Ops.WINDOW:
            axis, size, _, _, positions = arg
            return (*shape[:axis], positions, *shape[axis + 1 :], size)
        case _:
            axis, length, _, _ = arg
            return (*shape[:axis], length, *shape[axis + 1 :])
