"""Sums of multiples: the normal form of index arithmetic. `2*(i + 3) - j` is `{i: 2, j: -1}` and 6."""

from __future__ import annotations

from ..dtype import DType
from ..ops import Ops
from ..uop import UOp, const

__all__ = ["from_linear", "linear", "order_key"]


def linear(u: UOp) -> tuple[dict[UOp, int], int]:
    """Coefficients per atom, and the constant; an atom is whatever is not +, -, or * by a constant."""
    terms: dict[UOp, int] = {}
    offset = 0
    stack = [(u, 1)]
    while stack:
        node, k = stack.pop()
        match node.op:
            case Ops.CONST if not isinstance(node.arg, tuple):
                offset += k * node.arg
            case Ops.ADD:
                stack += [(node.src[1], k), (node.src[0], k)]
            case Ops.SUB:
                stack += [(node.src[1], -k), (node.src[0], k)]
            case Ops.NEG:
                stack.append((node.src[0], -k))
            case Ops.MUL if node.src[1].is_const:
                stack.append((node.src[0], k * node.src[1].arg))
            case Ops.MUL if node.src[0].is_const:
                stack.append((node.src[1], k * node.src[0].arg))
            case _:
                terms[node] = terms.get(node, 0) + k
    return {atom: k for atom, k in terms.items() if k}, offset


def order_key(atom: UOp) -> tuple[str, bytes]:
    """A fixed order of atoms, equal in every process: loops by name, then the rest."""
    return (str(atom.arg[0]), b"") if atom.op is Ops.RANGE else ("~", atom.key)


def from_linear(terms: dict[UOp, int], offset: int, dtype: DType) -> UOp:
    """The sum in its one normal form: atoms in order, the constant last."""
    total: UOp | None = None
    for atom in sorted(terms, key=order_key):
        k = terms[atom]
        term = atom if k == 1 else atom * k
        total = term if total is None else total + term
    if total is None:
        return const(dtype, offset)
    return total + offset if offset else total
