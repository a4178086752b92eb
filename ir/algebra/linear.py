"""Sums of multiples: the normal form of index arithmetic. `2*(i + 3) - j` is `{i: 2, j: -1}` and 6."""

from __future__ import annotations

from ..dtype import DType
from ..ops import Ops
from ..uop import MISSING, UOp, const

__all__ = ["from_linear", "linear", "order_key", "ordered_products", "polynomial", "recombined", "span"]

_SUMS = frozenset({Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL})
_ARITHMETIC = _SUMS | {Ops.FLOORDIV, Ops.MOD, Ops.MAX, Ops.MIN}


def linear(u: UOp) -> tuple[dict[UOp, int], int]:
    """Return the coefficient of each atom, and the constant. An atom is any node that is not +, -, or * by a
    constant. The result is cached: do not change it."""
    if u._linear is not MISSING:
        found: tuple[dict[UOp, int], int] = u._linear
        return found
    terms: dict[UOp, int] = {}
    offset = 0
    stack = [(u, 1)]
    while stack:
        node, k = stack.pop()
        op = node.op
        if op is Ops.CONST and type(node.arg) is not tuple:
            offset += k * node.arg
        elif op not in _SUMS:
            terms[node] = terms.get(node, 0) + k
        elif node._linear is not MISSING:
            inner, more = node._linear
            offset += k * more
            for atom, count in inner.items():
                terms[atom] = terms.get(atom, 0) + k * count
        elif op is Ops.ADD:
            stack += [(node.src[1], k), (node.src[0], k)]
        elif op is Ops.SUB:
            stack += [(node.src[1], -k), (node.src[0], k)]
        elif op is Ops.NEG:
            stack.append((node.src[0], -k))
        else:
            a, b = node.src
            if b.is_const:
                stack.append((a, k * b.arg))
            elif a.is_const:
                stack.append((b, k * a.arg))
            else:
                terms[node] = terms.get(node, 0) + k
    result = {atom: k for atom, k in terms.items() if k}, offset
    if u.op in _SUMS and u not in result[0]:  # an atom must not keep itself alive
        u._linear = result
    return result


def span(terms: dict[UOp, int], offset: int) -> tuple[int, int]:
    """The interval of a sum, from the intervals of its atoms."""
    low = high = offset
    for atom, k in terms.items():
        least, greatest = atom.bounds
        low += k * int(least if k > 0 else greatest)
        high += k * int(greatest if k > 0 else least)
    return low, high


def order_key(atom: UOp) -> tuple[str, bytes]:
    """A fixed order of atoms, equal in every process: loops by name, then the rest."""
    return (atom.arg[0], atom.key) if atom.op is Ops.RANGE else ("~", atom.key)


def from_linear(terms: dict[UOp, int], offset: int, dtype: DType) -> UOp:
    """Build the sum in its one normal form: atoms in order, the constant last. A sum of simple atoms is marked as
    simple."""
    if not terms:
        return const(dtype, offset)
    atoms = sorted(terms, key=order_key) if len(terms) > 1 else list(terms)
    is_simple = all(atom._simple is None for atom in atoms) and recombined(terms) is None
    total: UOp | None = None
    for atom in atoms:
        k = terms[atom]
        term = atom
        if k != 1:
            term = UOp(Ops.MUL, dtype, (atom, const(dtype, k)))
            if is_simple and term._simple is MISSING:
                _mark_simple(term)
        if total is None:
            total = term
        else:
            total = UOp(Ops.ADD, dtype, (total, term))
            if is_simple and total._simple is MISSING:
                _mark_simple(total)
    assert total is not None
    if offset:
        total = UOp(Ops.ADD, dtype, (total, const(dtype, offset)))
        if is_simple and total._simple is MISSING:
            _mark_simple(total)
    if total.op in _SUMS and total._linear is MISSING and total not in terms and all(terms.values()):
        total._linear = terms, offset
    return total


def _mark_simple(node: UOp) -> None:
    """Mark a sum of simple atoms in normal form as simple, unless it can have one value only."""
    for s in node.src:
        if s.op is Ops.CONST:
            s._simple = None
    low, high = node.bounds
    if low != high:
        node._simple = None


def recombined(terms: dict[UOp, int]) -> tuple[dict[UOp, int], int] | None:
    """Recombine quotient and remainder of one division; None if no two belong together.

    x%c + c*(x//c) = x, and x%c + c*((w + x//c)%d) = (c*w + x)%(c*d): this merges what a reshape has split.
    """
    for rest, k in terms.items():
        if rest.op is not Ops.MOD or not rest.src[1].is_const or rest.src[1].arg <= 1:
            continue
        x, c = rest.src[0], rest.src[1].arg
        for other, count in terms.items():
            if count != k * c or other is rest:
                continue
            joined = x if _is_quotient(other, x, c) else _recombined_modulo(other, x, c)
            if joined is not None:
                return _merged_terms(terms, (rest, other), joined, k)
    return None


def _recombined_modulo(other: UOp, x: UOp, c: int) -> UOp | None:
    """Return (c*w + x) % (c*d) if `other` is (w + x//c) % d."""
    if other.op is not Ops.MOD or not other.src[1].is_const or other.src[1].arg <= 0:
        return None
    inner, offset = linear(other.src[0])
    for atom, k in inner.items():
        if k == 1 and _is_quotient(atom, x, c):
            whole, more = dict(linear(x)[0]), linear(x)[1]
            for w, count in inner.items():
                if w is not atom:
                    whole[w] = whole.get(w, 0) + c * count
            dividend = from_linear({w: n for w, n in whole.items() if n}, more + c * offset, x.dtype)
            return UOp(Ops.MOD, x.dtype, (dividend, const(x.dtype, c * other.src[1].arg)))
    return None


def _is_quotient(u: UOp, x: UOp, c: int) -> bool:
    """True if u is x // c; if x itself is z // b, u may be z // (b*c)."""
    if u.op is not Ops.FLOORDIV or not u.src[1].is_const:
        return False
    if u.src[0] is x:
        return bool(u.src[1].arg == c)
    inner = x.op is Ops.FLOORDIV and x.src[1].is_const and x.src[1].arg > 0 and u.src[0] is x.src[0]
    return bool(inner and u.src[1].arg == c * x.src[1].arg)


def _merged_terms(terms: dict[UOp, int], gone: tuple[UOp, UOp], x: UOp, k: int) -> tuple[dict[UOp, int], int]:
    rest = {atom: count for atom, count in terms.items() if atom not in gone}
    inner, offset = linear(x)
    for atom, count in inner.items():
        rest[atom] = rest.get(atom, 0) + k * count
    return {atom: count for atom, count in rest.items() if count}, k * offset


def polynomial(u: UOp) -> dict[tuple[UOp, ...], int]:
    """Coefficients per product of atoms, of () for the constant: equal for all ways to write one sum of products."""
    terms, offset = linear(u)
    found: dict[tuple[UOp, ...], int] = {(): offset}
    for atom, k in terms.items():
        product: dict[tuple[UOp, ...], int] = {(atom,): 1}
        if atom.op is Ops.MUL:
            left, right = map(polynomial, atom.src)
            product = {}
            for a, m in left.items():
                for b, n in right.items():
                    factors = tuple(sorted((*a, *b), key=order_key))
                    product[factors] = product.get(factors, 0) + m * n
        for factors, n in product.items():
            found[factors] = found.get(factors, 0) + k * n
    return {factors: n for factors, n in found.items() if n}


def ordered_products(u: UOp) -> UOp:
    """The expression with the factors of each product in the one fixed order, a constant last."""
    if u.op not in _ARITHMETIC:
        return u
    src = tuple([ordered_products(s) for s in u.src])
    if u.op is not Ops.MUL:
        return u if src == u.src else u.replace(src=src)
    factors, count, stack = list[UOp](), 1, list(src)
    while stack:
        factor = stack.pop()
        if factor.op is Ops.MUL:
            stack += factor.src
        elif factor.is_const:
            count *= factor.arg
        else:
            factors.append(factor)
    first, *others = sorted(factors, key=order_key) or [const(u.dtype, 1)]
    for factor in others:
        first = UOp(Ops.MUL, u.dtype, (first, factor))
    return first if count == 1 else UOp(Ops.MUL, u.dtype, (first, const(u.dtype, count)))
