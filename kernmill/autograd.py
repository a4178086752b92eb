"""The gradient of each op, as a table of named rules.

A rule takes the node and the gradient of its value, and gives one gradient per source (None: none). Rules build
ordinary nodes, so a gradient has gradients. Ops without a row are constants to gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kernmill.ir import (
    GradientError,
    Op,
    Ops,
    Size,
    UOp,
    as_size,
    assign,
    const,
    current_origin,
    device_of,
    dtypes,
    elementwise,
    expand,
    iota,
    join_origin,
    numel,
    pad,
    permute,
    reduce_axes,
    reshape,
    show_shape,
    shrink,
    split_origin,
    strided,
    unwindow,
    window,
)

from .lazy import KNOWN, SEALED, accumulator, constant, history, sources_of
from .methods.segments import added, is_long
from .methods.sorting import Sortable

__all__ = [
    "AfterBackward", "NewGrads", "depends_on_no_leaf", "gradient", "history_lost", "is_stop", "leads_not",
    "leaf_written", "new_grads", "stepped",
]  # fmt: skip

NewGrads: TypeAlias = dict[int, tuple[Any, Any]]  # by the id of a leaf: the leaf, and what backward() found for it
AfterBackward: TypeAlias = Callable[[Any, NewGrads], NewGrads]
Grads = tuple[UOp | None, ...]
_DEPTH = 3  # elementwise steps in the search for invariance along an axis


def gradient(root: UOp, grad: UOp, targets: Collection[UOp], leaves: Collection[UOp] = ()) -> dict[UOp, UOp]:
    """Return the gradient of `root` for each target that it depends on, given the gradient of root itself.

    Nodes below `leaves` are not visited.
    """
    order = history(root, lambda u: u in leaves or (is_stop(u) and u not in targets))
    leads: set[UOp] = set()
    for node in order:
        if node in targets or any(s in leads for s in sources_of(node)):
            leads.add(node)
    grads: dict[UOp, UOp] = {root: grad}
    inner = {target for target in targets if target.src}
    own = current_origin.line
    try:
        _propagate(order, grads, leads, leaves, inner)
    finally:
        current_origin.line = own
    return {target: grads[target] for target in targets if target in grads}


def _propagate(
    order: Sequence[UOp], grads: dict[UOp, UOp], leads: set[UOp], leaves: Collection[UOp], inner: set[UOp]
) -> None:
    """Add the gradients of nodes, last ones first; new nodes name the forward line."""
    own = current_origin.line
    named: dict[str | None, str | None] = {None: own}
    for node in reversed(order):
        if node not in leads or node not in grads or node in leaves or is_stop(node):
            continue
        if node.origin not in named:
            line, layer, _ = split_origin(node.origin)
            named[node.origin] = join_origin(line, layer, "backward")
        current_origin.line = named[node.origin]
        rule, known = RULES.get(node.op), KNOWN.get(node)
        if known and inner and node not in SEALED and _is_between(inner, node, known[0]):
            known = None
        if known and not isinstance(known[0], UOp):
            _add_parts(grads, zip(known[0], known[1](node, known[0], grads[node]), strict=True), leads)
            continue
        if rule is None or not any(s in leads for s in node.src):
            continue
        found = (
            [(known[0], known[1](node, known[0], grads[node]))]
            if known
            else zip(node.src, rule(node, grads[node]), strict=True)
        )
        _add_parts(grads, found, leads)


def _add_parts(grads: dict[UOp, UOp], found: Iterable[tuple[UOp, UOp | None]], leads: Container[UOp]) -> None:
    """Add gradients of sources to what others have given them."""
    for source, part in found:
        if part is not None and source in leads and source.dtype.is_float:
            part = _fitted(part, source)
            grads[source] = grads[source] + part if source in grads else part


def leaf_written() -> GradientError:
    """Make the error of a write into a leaf."""
    return GradientError(
        "a write to a leaf, a tensor that was made with requires_grad: the value depends on such a tensor, and "
        "its gradient would be lost. Write in no_grad(), write value.detach(), or write to "
        "x.clone()."
    )


def history_lost() -> GradientError:
    """Make the error of a write in no_grad() to a result."""
    return GradientError(
        "a write in no_grad() to a tensor that was computed from one with requires_grad: its gradient would be "
        "wrong. Write x = x.detach() before, or make a new tensor instead of the write."
    )


def depends_on_no_leaf() -> GradientError:
    """The error of backward() where nothing requires a gradient."""
    return GradientError(
        "backward: this tensor does not depend on any tensor with requires_grad. Make a leaf with requires_grad=True, "
        "and compute outside no_grad() and captured functions, or call backward() inside them."
    )


def stepped(call: str) -> GradientError:
    """Make the error of a loss whose history an optimizer's step has released."""
    return GradientError(
        f"{call}: the optimizer has already made the step of this loss, and its graph is released. Compute the "
        f"loss again, or call {call}() before step()."
    )


def leads_not(result: Any, number: int, target: Any) -> GradientError:
    """Make the error of a target that a tensor was not computed from."""
    if result._was_stepped and not result.requires_grad:
        return stepped("gradient")
    if result._former is not None and not result.requires_grad:
        return GradientError(
            f"gradient: this tensor of shape {show_shape(result.uop.shape)} was realized or read, and its graph is "
            "released. Call gradient() before that, or make the target with requires_grad=True."
        )
    return GradientError(
        f"gradient: this tensor does not depend on target {number} of shape {show_shape(target.uop.shape)}. "
        "Compute it from the target, outside no_grad() and without detach()."
    )


def new_grads(root: Any, found: Mapping[UOp, Any], grads: Mapping[UOp, UOp]) -> Iterable[tuple[Any, Any]]:
    """Return what backward() of `root` adds to the gradient of each leaf. `found`: leaves by their nodes."""
    parts: NewGrads = {}
    for node, leaf in found.items():
        part = leaf._make(constant(leaf._at_home(grads.get(node) or filled(node, 0.0))), leaf._device)
        known = parts.get(id(leaf))  # it has two nodes where it was frozen meanwhile
        parts[id(leaf)] = leaf, part if known is None else known[1].add(part)
    for after in dict.fromkeys(leaf._after_backward for leaf, _ in parts.values()):
        if after is not None:
            of_this = [key for key, (leaf, _) in parts.items() if leaf._after_backward is after]
            parts |= after(root, {key: parts.pop(key) for key in of_this})
    return parts.values()


def is_stop(node: UOp) -> bool:
    """True if it is a constant to gradients: of detach(), from no_grad(), or a leaf."""
    return node.op is Ops.DETACH or node.own == 2


def _is_between(targets: Collection[UOp], node: UOp, known: UOp | tuple[UOp, ...]) -> bool:
    """True if a node depends on one of these other than through its sources."""
    sources = (known,) if isinstance(known, UOp) else known
    return any(u in targets and u is not node and u not in sources for u in node.toposort(stop=lambda u: u in sources))


def _fitted(grad: UOp, source: UOp) -> UOp:
    """A scalar constant gradient at the shape of its source."""
    return grad if grad.shape == source.shape else filled(source, grad)


# --- small words -----------------------------------------------------------------------------------------------------
def filled(like: UOp, value: UOp | float) -> UOp:
    """A scalar in the shape and dtype of a node."""
    node = value if isinstance(value, UOp) else const(like.dtype, value)
    return expand(reshape(node, (1,) * len(like.shape)), like.shape)


def sum_axes(x: UOp, axes: Sequence[int]) -> UOp:
    """Sum axes to size 1; half types in float32. Values that are invariant in another axis are summed once."""
    others = {a for a, size in enumerate(x.shape) if isinstance(size, int) and size != 1 and a not in axes}
    if still := _still(x, _DEPTH, others):
        once = sum_axes(_narrow(x, still), axes)
        return expand(once, [x.shape[a] if a in still else size for a, size in enumerate(once.shape)])
    if x.dtype.is_float and x.dtype.bits < 32:
        return reduce_axes(x.cast(dtypes.float32), Ops.ADD, axes).cast(x.dtype)
    return reduce_axes(x, Ops.ADD, axes)


def _still(x: UOp, depth: int, axes: set[int]) -> set[int]:
    """Return those of the axes along which all entries are the same, as far as a short look can tell."""
    if not axes or _constant(x) is not None:
        return axes
    if x.op in (Ops.EXPAND, Ops.PERMUTE, Ops.RESHAPE):
        own = _axes_below(x)
        below = _still(x.src[0], depth, {axis for a in axes if (axis := own[a]) is not None and axis >= 0})
        return {a for a in axes if own[a] is None or own[a] in below}
    if not (x.op.is_elementwise and depth):
        return set()
    for s in x.src:
        if s.shape and not (axes := _still(s, depth - 1, axes)):
            break
    return axes


def _axes_below(x: UOp) -> list[int | None]:
    """Return the axis of its source for each axis of an EXPAND, PERMUTE or RESHAPE; None: all entries are equal. An
    axis that a RESHAPE splits or merges is -1, which no source has."""
    (source,) = x.src
    if x.op is Ops.PERMUTE:
        return [*x.arg]
    if x.op is Ops.EXPAND:
        return [
            None if own == 1 != size else a for a, (own, size) in enumerate(zip(source.shape, x.shape, strict=True))
        ]
    long = [a for a, size in enumerate(source.shape) if size != 1]
    if [source.shape[a] for a in long] != [size for size in x.shape if size != 1]:
        return [-1] * len(x.shape)
    return [long.pop(0) if size != 1 else -1 for size in x.shape]


def _narrow(x: UOp, axes: set[int]) -> UOp:
    """One entry of axes along which all are the same."""
    if not axes:
        return x
    shape = [1 if a in axes else size for a, size in enumerate(x.shape)]
    value = _constant(x)
    if value is not None:
        return expand(reshape(value, (1,) * len(shape)), shape) if x.shape else x
    if x.op.is_elementwise:
        return x.replace(src=tuple(_narrow(s, axes) if s.shape else s for s in x.src))
    below = _axes_below(x)
    source = _narrow(x.src[0], {own for a in axes if (own := below[a]) is not None})
    if x.op is Ops.PERMUTE:
        return permute(source, x.arg)
    return expand(source, shape) if x.op is Ops.EXPAND else reshape(source, shape)


def _constant(x: UOp) -> UOp | None:
    """The one constant that all entries are, if they are one."""
    while x.op in (Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE):
        x = x.src[0]
    return x if x.op is Ops.CONST else None


def _where(condition: UOp, yes: UOp | float, no: UOp | float) -> UOp:
    like = yes if isinstance(yes, UOp) else no
    assert isinstance(like, UOp)
    return elementwise(Ops.WHERE, condition, like.like(yes), like.like(no))


# --- elementwise -----------------------------------------------------------------------------------------------------
def grad_add(u: UOp, g: UOp) -> Grads:
    return g, g


def grad_sub(u: UOp, g: UOp) -> Grads:
    return g, -g


def grad_mul(u: UOp, g: UOp) -> Grads:
    a, b = u.src
    return elementwise(Ops.MUL, g, b), elementwise(Ops.MUL, g, a)


def grad_div(u: UOp, g: UOp) -> Grads:
    over = elementwise(Ops.DIV, g, u.src[1])
    return over, -(over * u)


def grad_mod(u: UOp, g: UOp) -> Grads:
    a, b = u.src
    return g, -(g * elementwise(Ops.DIV, a, b).alu(Ops.FLOOR))


def grad_pow(u: UOp, g: UOp) -> Grads:
    a, b = u.src
    one = filled(u, 1.0)
    base = g * b if b.shape else elementwise(Ops.MUL, g, b)
    down = elementwise(Ops.POW, elementwise(Ops.MUL, one, a), elementwise(Ops.SUB, b, const(b.dtype, 1.0)))
    of_base = _where(elementwise(Ops.EQ, elementwise(Ops.MUL, one, b), const(b.dtype, 0.0)), 0.0, base * down)
    log = elementwise(Ops.MUL, one, a).alu(Ops.LOG)
    is_zero = elementwise(
        Ops.AND, elementwise(Ops.EQ, a, const(a.dtype, 0.0)), elementwise(Ops.LE, const(b.dtype, 0.0), b)
    )
    return of_base, _where(is_zero, 0.0, g * u * log)


def grad_extreme(u: UOp, g: UOp) -> Grads:
    """Propagate to the winner of max or min; equal sources share evenly; with nan all get the gradient."""
    a, b = u.src
    share = _where(elementwise(Ops.EQ, a, b), g * 0.5, g)
    is_less, is_more = elementwise(Ops.LT, a, b), elementwise(Ops.LT, b, a)
    lost = (is_less, is_more) if u.op is Ops.MAX else (is_more, is_less)
    return _where(lost[0], 0.0, share), _where(lost[1], 0.0, share)


def grad_neg(u: UOp, g: UOp) -> Grads:
    return (-g,)


def grad_abs(u: UOp, g: UOp) -> Grads:
    (x,) = u.src
    rest = _where(elementwise(Ops.EQ, x, filled(x, 0.0)), 0.0, x)  # 0 or nan; a product with g would have a gradient
    return (_where(x < 0.0, -g, _where(x > 0.0, g, rest)),)


def grad_exp(u: UOp, g: UOp) -> Grads:
    return (g * u,)


def grad_exp2(u: UOp, g: UOp) -> Grads:
    return (g * u * math.log(2.0),)


def grad_log(u: UOp, g: UOp) -> Grads:
    return (g / u.src[0],)


def grad_log2(u: UOp, g: UOp) -> Grads:
    return (g / (u.src[0] * math.log(2.0)),)


def grad_sin(u: UOp, g: UOp) -> Grads:
    return (g * u.src[0].alu(Ops.COS),)


def grad_cos(u: UOp, g: UOp) -> Grads:
    return (-(g * u.src[0].alu(Ops.SIN)),)


def grad_tanh(u: UOp, g: UOp) -> Grads:
    return (g * (1.0 - u * u),)


def grad_erf(u: UOp, g: UOp) -> Grads:
    (x,) = u.src
    return (g * (-(x * x)).alu(Ops.EXP) * (2.0 / math.sqrt(math.pi)),)


def grad_sqrt(u: UOp, g: UOp) -> Grads:
    return (g / (u * 2.0),)


def grad_where(u: UOp, g: UOp) -> Grads:
    return None, _where(u.src[0], g, 0.0), _where(u.src[0], 0.0, g)


def grad_fma(u: UOp, g: UOp) -> Grads:
    a, b, _ = u.src
    return elementwise(Ops.MUL, g, b), elementwise(Ops.MUL, g, a), g


def grad_cast(u: UOp, g: UOp) -> Grads:
    return (g.cast(u.src[0].dtype),)


def grad_same(u: UOp, g: UOp) -> Grads:
    return (g,)


def grad_stored(u: UOp, g: UOp) -> Grads:
    """Return the gradient of a stored tensor. If it is a sum in a different order of axes, it is stored in this one:
    its readers then read it like the tensor."""
    below = g
    while below.op is Ops.RESHAPE or below.op is Ops.PERMUTE:
        below = below.src[0]
    return (UOp(Ops.CONTIGUOUS, g.dtype, (g,)) if below.op is Ops.REDUCE and below is not g else g,)


# --- movement --------------------------------------------------------------------------------------------------------
def grad_reshape(u: UOp, g: UOp) -> Grads:
    return (reshape(g, u.src[0].shape),)


def grad_expand(u: UOp, g: UOp) -> Grads:
    grown = [
        a for a, (old, new) in enumerate(zip(u.src[0].shape, u.shape, strict=True)) if old is not new and old != new
    ]
    return (reshape(sum_axes(g, grown), u.src[0].shape),)


def grad_permute(u: UOp, g: UOp) -> Grads:
    return (permute(g, [u.arg.index(a) for a in range(len(u.arg))]),)


def grad_pad(u: UOp, g: UOp) -> Grads:
    return (shrink(g, [(before, before + size) for (before, _), size in zip(u.arg, u.src[0].shape, strict=True)]),)


def grad_shrink(u: UOp, g: UOp) -> Grads:
    return (pad(g, [(a, as_size(size - a - n)) for (a, n), size in zip(u.arg, u.src[0].shape, strict=True)]),)


def grad_stride(u: UOp, g: UOp) -> Grads:
    return (spread(g, [step for step, _ in u.arg], u.src[0].shape),)


def spread(x: UOp, steps: Sequence[int], shape: Sequence[Size]) -> UOp:
    """Return the adjoint of STRIDE: elements at their positions in `shape`, zeros between."""
    wide = [size for length, step in zip(x.shape, steps, strict=True) for size in (length, abs(step))]
    apart = pad(reshape(x, [s for length in x.shape for s in (length, 1)]),
                [p for step in steps for p in ((0, 0), (0, abs(step) - 1))])  # fmt: skip
    flat = reshape(apart, [wide[2 * a] * wide[2 * a + 1] for a in range(len(steps))])
    fits = shrink(flat, [(0, min_size(length, size)) for length, size in zip(flat.shape, shape, strict=True)])
    full = pad(fits, [(0, size - length) for length, size in zip(fits.shape, shape, strict=True)])
    return strided(full, [-1 if step < 0 else 1 for step in steps])


def min_size(a: Size, b: Size) -> Size:
    """The smaller of two sizes; a symbolic size wins (it is not strided)."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else b


def grad_window(u: UOp, g: UOp) -> Grads:
    axis, _, stride, dilation, _ = u.arg
    (x,) = u.src
    placed = unwindow(g, axis, x.shape[axis], stride, dilation)
    return (reshape(sum_axes(placed, [len(placed.shape) - 1]), x.shape),)


def grad_unwindow(u: UOp, g: UOp) -> Grads:
    """Return the window of g with only the diagonal k = k': out[.., o, .., k] = g[.., o*stride + k*dilation, .., k]."""
    axis, _, stride, dilation = u.arg
    (x,) = u.src
    size = x.shape[-1]
    assert isinstance(size, int)
    seen = shrink_to(window(g, axis, size, stride, dilation), axis, x.shape[axis])
    k = iota(size)
    same = elementwise(Ops.EQ, reshape(k, (size, 1)), k)
    kept = sum_axes(_where(same, seen, 0.0), [len(seen.shape) - 1])
    return (reshape(kept, x.shape),)


def shrink_to(x: UOp, axis: int, size: Size) -> UOp:
    """The first `size` entries of an axis."""
    return shrink(x, [(0, size if a == axis else length) for a, length in enumerate(x.shape)])


# --- reductions, memory ----------------------------------------------------------------------------------------------
def grad_reduce(u: UOp, g: UOp) -> Grads:
    (x,) = u.src
    op, axes = u.arg
    wide = expand(g, x.shape)
    if op is Ops.ADD:
        return (wide,)
    if op is Ops.MUL:
        return (wide * others_product(x, u, axes),)
    if op not in (Ops.MAX, Ops.MIN):
        return (None,)
    wins = elementwise(Ops.EQ, x, expand(u, x.shape))
    count = reduce_axes(wins.cast(accumulator(x.dtype)), Ops.ADD, axes)  # float16 counts up to 65,504
    return (_where(wins, (wide.cast(count.dtype) / expand(count, x.shape)).cast(x.dtype), 0.0),)


def others_product(x: UOp, product: UOp, axes: Sequence[int]) -> UOp:
    """The product of all other entries of the axes, right where entries are 0."""
    is_zero = x.eq(0.0)
    ones = filled(x, 1.0)
    zeros = expand(reduce_axes(_where(is_zero, ones, 0.0), Ops.ADD, axes), x.shape)
    safe = _where(is_zero, 1.0, x)
    rest = expand(reduce_axes(safe, Ops.MUL, axes), x.shape)
    return _where(
        zeros.eq(0.0), expand(product, x.shape) / safe, _where(elementwise(Ops.AND, zeros.eq(1.0), is_zero), rest, 0.0)
    )


def grad_take(u: UOp, g: UOp) -> Grads:
    """Add up the gradients of all index positions that read each entry."""
    data, index = u.src
    axis = u.arg
    rank, count = len(index.shape), numel(index.shape)
    before, size, after = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    assert len(g.shape) == len(before) + rank + len(after)
    if is_long(count, size, numel((*before, *after))):
        rows = permute(reshape(g, (numel(before), count, numel(after))), (1, 0, 2))
        wide = reshape(rows, (1, count, numel((*before, *after))))
        total = added(Sortable._make(wide), Sortable._make(reshape(index, (1, count))), size).uop
        return reshape(permute(reshape(total, (size, *rows.shape[1:])), (1, 0, 2)), data.shape), None
    flat = reshape(g, (*before, 1, count, *after))
    hit = elementwise(Ops.EQ, reshape(iota(size, index.dtype), (size, 1)), reshape(index, (1, count)))
    hit = reshape(hit, (*(1 for _ in before), size, count, *(1 for _ in after)))
    return reshape(sum_axes(_where(hit, flat, 0.0), [axis + 1]), data.shape), None


def grad_assign(u: UOp, g: UOp) -> Grads:
    _, value = u.src
    if u.arg is None:
        return None, _unbroadcast(g, value)
    bounds = [(start, stop) for start, stop, _ in u.arg]
    inner = strided(shrink(g, bounds), [step for _, _, step in u.arg])
    outside = assign(g, filled(inner, 0.0), u.arg)
    return outside, _unbroadcast(inner, value)


def _unbroadcast(g: UOp, source: UOp) -> UOp:
    """The gradient summed to the shape that was broadcast."""
    shape = (1,) * (len(g.shape) - len(source.shape)) + tuple(source.shape)
    grown = [a for a, (old, new) in enumerate(zip(shape, g.shape, strict=True)) if old is not new and old != new]
    return reshape(sum_axes(g, grown), source.shape)


def grad_copy(u: UOp, g: UOp) -> Grads:
    home = device_of(u.src[0])
    return (g if home is None else UOp(Ops.COPY, g.dtype, (g,), home),)


def grad_first(u: UOp, g: UOp) -> Grads:
    return g, *(None for _ in u.src[1:])


RULES: dict[Op, Callable[[UOp, UOp], Grads]] = {
    Ops.ADD: grad_add, Ops.SUB: grad_sub, Ops.MUL: grad_mul, Ops.DIV: grad_div, Ops.MOD: grad_mod, Ops.POW: grad_pow,
    Ops.MAX: grad_extreme, Ops.MIN: grad_extreme, Ops.NEG: grad_neg, Ops.ABS: grad_abs, Ops.EXP: grad_exp,
    Ops.EXP2: grad_exp2, Ops.LOG: grad_log, Ops.LOG2: grad_log2, Ops.SIN: grad_sin, Ops.COS: grad_cos,
    Ops.TANH: grad_tanh, Ops.ERF: grad_erf, Ops.SQRT: grad_sqrt, Ops.WHERE: grad_where, Ops.FMA: grad_fma,
    Ops.CAST: grad_cast, Ops.RESHAPE: grad_reshape, Ops.EXPAND: grad_expand, Ops.PERMUTE: grad_permute,
    Ops.PAD: grad_pad, Ops.SHRINK: grad_shrink, Ops.STRIDE: grad_stride, Ops.WINDOW: grad_window,
    Ops.UNWINDOW: grad_unwindow, Ops.REDUCE: grad_reduce, Ops.TAKE: grad_take, Ops.ASSIGN: grad_assign,
    Ops.CONTIGUOUS: grad_stored, Ops.COPY: grad_copy, Ops.CHECK: grad_first,
    Ops.WAIT: grad_first,
}  # fmt: skip
