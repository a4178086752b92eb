"""class UOp: one immutable, interned node. The same class carries a program from the user's expression to the linear
list.

A node is `(op, dtype, src, arg)`. Equal nodes are the same object, so common subexpressions are shared for free and
`is` is equality. Everything else is derived and cached: shape, bounds, the ranges it depends on, a key that is stable
across processes. `origin` (the user's source line) and `storage` (the memory of a realized node) are not part of the
identity.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from .bounds import Bounds, bounds_of
from .dtype import DType, dtypes
from .ops import AxisKind, Op, OpGroup, Ops
from .process.digest import blake2b
from .process.errors import InternalError
from .process.weak import Ref, dead, note_dead, sweep, sweep_lock
from .shape import Shape
from .shape_rules import shape_of
from .values import Given, to_dtype

__all__ = [
    "UOp", "apart", "arg_text", "closed_ranges", "const", "current_origin", "index_const", "is_in_order", "make_range",
    "memory_of", "rebuilt", "substitute", "with_sources",
]  # fmt: skip

MISSING: Any = object()
_HALF_LINE = 32  # bytes of a cache
_COMPARE = OpGroup.COMPARE  # the enum lookup would take as long as the rest of `alu`


_table: dict[Any, Ref] = {}
_new = object.__new__
_MOST_DEAD = 100  # entries of nodes that no longer exist; they do not keep other nodes alive


class _Ref(Ref):
    __slots__ = ()
    table = _table


def _identity(dtype: DType, arg: Any) -> Any:
    """Return the identity of a CONST's arg: 0.0 and -0.0 differ, nan equals itself, and users' numbers differ from
    ours."""
    if dtype.is_float and not isinstance(arg, tuple):
        return "nan" if arg != arg else (arg, math.copysign(1.0, arg), type(arg) is Given)
    if isinstance(arg, tuple):
        return tuple(_identity(dtype, value) for value in arg)
    return arg


Derived = TypeVar("Derived")


def _derive(node: UOp, slot: str, rule: Callable[[UOp], Derived]) -> Derived:
    """Fill a slot of a node by a rule over the slots of its sources; those are filled first, without recursion."""
    for s in node.src:
        if getattr(s, slot) is MISSING:
            for below in s.src:
                if getattr(below, slot) is MISSING:
                    break
            else:  # by far the most
                setattr(s, slot, rule(s))
                continue
            for below in s.toposort(stop=lambda u: getattr(u, slot) is not MISSING) if s.src else (s,):
                if getattr(below, slot) is MISSING:
                    setattr(below, slot, rule(below))
    found = rule(node)
    setattr(node, slot, found)
    return found


def _key_of(node: UOp) -> bytes:
    text = f"{node.op.name} {node.dtype.name} {arg_text(node.arg)} "
    return blake2b(text.encode() + b"".join(s.key for s in node.src), digest_size=16).digest()


class _Origin(threading.local):
    line: str | None = None
    suffix: str = ""
    layer: Any = None
    given: tuple[Any, ...] = ()


current_origin = _Origin()
"""Its `line` is given to every node that this thread makes from now on; `given` are the arguments of the user's call,
if there is a float among them. Lines of later calls end in `suffix`, which names the layer that is called now, `layer`,
or the parameter that is updated (origin.py)."""


def _infix(op: Op) -> Callable[[UOp, UOp | float], UOp]:
    return lambda self, other: self.alu(op, other)


def _reflected(op: Op) -> Callable[[UOp, UOp | float], UOp]:
    """The operator with this node on the right."""
    return lambda self, other: self.like(other).alu(op, self)


class UOp:
    """One node. Build with operators, the functions of `ir.graph` or `UOp(op, dtype, src, arg)`."""

    __slots__ = (
        "__weakref__", "_bounds", "_key", "_linear", "_order", "_ranges", "_shape", "_simple",
        "arg", "dtype", "first_realize", "op", "origin", "own", "src", "storage", "was_named",
    )  # fmt: skip

    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    origin: str | None
    storage: Any
    first_realize: int  # the number of the realize that met this node first; 0: none has
    own: int  # 0: interned; else one tensor's, and no equal expression is this node; 2: also a constant to gradients
    was_named: int  # tensors of a user that had this node: 0, 1, or 2 for more, since equal expressions share nodes
    _shape: Any  # these are MISSING until the first access
    _bounds: Any
    _ranges: Any
    _key: Any
    _order: Any  # of a SINK: all its sources in topological order
    _simple: Any  # result of `simplify`; None: the node itself
    _linear: Any  # what `linear` read from it

    def __new__(cls, op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:  # noqa: D102
        count = len(src)  # the key has ids of sources: an entry must not keep them alive
        if count == 2:
            key: Any = op, dtype, arg, id(src[0]), id(src[1])
        elif count == 1:
            key = op, dtype, arg, id(src[0])
        elif count:
            key = op, dtype, arg, *map(id, src)
        else:
            key = op, dtype, _identity(dtype, arg) if op is Ops.CONST else arg
        ref = _table.get(key)
        if ref is not None and (found := ref()) is not None and not found.own:
            return found  # type: ignore[no-any-return]
        if len(dead) > _MOST_DEAD:
            sweep()
        self = _new(cls)
        self.op, self.dtype, self.src, self.arg = op, dtype, src, arg
        self.origin, self.storage, self.own = current_origin.line, None, 0
        self._shape = self._bounds = self._ranges = self._key = self._simple = MISSING
        self._linear = self._order = MISSING
        self.first_realize = self.was_named = 0
        new = _Ref(self, note_dead)
        new.key = key
        if _table.setdefault(key, new) is not new:  # another thread was quicker, or the earlier node no longer exists
            with sweep_lock:
                ref = _table.get(key)
                if ref is not None and (found := ref()) is not None and not found.own:
                    return found  # type: ignore[no-any-return]
                _table[key] = new
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise InternalError("a UOp is never pickled: use ir.text to write it down")

    def replace(self, *, op: Op | None = None, dtype: DType | None = None, src: tuple[UOp, ...] | None = None,
                arg: Any = MISSING) -> UOp:  # fmt: skip
        """Return the same node with some fields changed."""
        return UOp(
            op or self.op, dtype or self.dtype, self.src if src is None else src, self.arg if arg is MISSING else arg
        )

    # --- derived from the sources at the first access, then cached
    @property
    def shape(self) -> Shape:
        """Sizes of a tensor node; () for a scalar and for everything in a kernel."""
        found: Shape = self._shape
        return found if found is not MISSING else _derive(self, "_shape", shape_of)

    @property
    def bounds(self) -> Bounds:
        """The interval (least, greatest) of an int or bool value; that of the dtype if nothing is known."""
        found: Bounds = self._bounds
        return found if found is not MISSING else _derive(self, "_bounds", bounds_of)

    @property
    def ranges(self) -> frozenset[UOp]:
        """The loops that this value depends on."""
        found: frozenset[UOp] = self._ranges
        return found if found is not MISSING else _derive(self, "_ranges", _ranges_of)

    @property
    def key(self) -> bytes:
        """A digest of the whole expression, equal in every process."""
        found: bytes = self._key
        return found if found is not MISSING else _derive(self, "_key", _key_of)

    @property
    def is_const(self) -> bool:
        """A CONST with one number, scalar or in all lanes."""
        return self.op is Ops.CONST and not isinstance(self.arg, tuple)

    @property
    def first_iteration(self) -> int | None:
        """Of a RANGE: the first iteration of this slice of the THREAD loop; None if it is not a slice."""
        return self.arg[2] if len(self.arg) > 2 else None

    @property
    def gate(self) -> UOp | None:
        """Of an INDEX: its bool predicate; None if it is always accessed."""
        return self.src[2] if len(self.src) > 2 else None

    def toposort(self, stop: Callable[[UOp], bool] | None = None) -> list[UOp]:
        """Return all nodes below and including this one, sources first; do not descend below nodes where `stop` is
        true."""
        if stop is None and self._order is not MISSING:
            return [*self._order, self]
        order: dict[UOp, None] = {}
        node: UOp | None = self
        sources = iter(() if stop is not None and stop(self) else self.src)
        waiting: list[tuple[UOp | None, Iterator[UOp]]] = [(None, sources)]  # nodes, each with the sources to come
        while node is not None:
            for s in sources:
                if s in order:
                    continue
                if s.src and (stop is None or not stop(s)):
                    waiting.append((node, sources))
                    node, sources = s, iter(s.src)
                    break
                order[s] = None
            else:
                order[node] = None
                node, sources = waiting.pop()
        found = list(order)
        if stop is None and self.op is Ops.SINK:  # of kernels, whose order is requested repeatedly
            self._order = found[:-1]  # without itself: a cycle would keep it alive
        return found

    # --- building: same dtype on both sides, Python numbers become constants of it
    def like(self, value: UOp | float) -> UOp:
        """`value` itself, or a constant of this node's dtype."""
        return value if isinstance(value, UOp) else const(self.dtype, value)

    def alu(self, op: Op, *others: UOp | float) -> UOp:
        """Apply an elementwise op; comparisons give bool."""
        own = self.dtype
        src = (self, *[other if isinstance(other, UOp) else const(own, other) for other in others])
        if op.group is _COMPARE:
            own = dtypes.bool.vec(own.lanes)
        return UOp(op, src[-1].dtype if op is Ops.WHERE else own, src)

    __add__, __radd__ = _infix(Ops.ADD), _reflected(Ops.ADD)
    __sub__, __rsub__ = _infix(Ops.SUB), _reflected(Ops.SUB)
    __mul__, __rmul__ = _infix(Ops.MUL), _reflected(Ops.MUL)
    __truediv__, __rtruediv__ = _infix(Ops.DIV), _reflected(Ops.DIV)
    __floordiv__ = _infix(Ops.FLOORDIV)
    __mod__ = _infix(Ops.MOD)
    __and__ = _infix(Ops.AND)
    __or__ = _infix(Ops.OR)
    __xor__ = _infix(Ops.XOR)
    __lshift__ = _infix(Ops.SHL)
    __rshift__ = _infix(Ops.SHR)
    __lt__, __gt__ = _infix(Ops.LT), _reflected(Ops.LT)
    __le__, __ge__ = _infix(Ops.LE), _reflected(Ops.LE)

    def __neg__(self) -> UOp:
        return self.alu(Ops.NEG)

    def eq(self, other: UOp | float) -> UOp:
        """Elementwise ==; the operator itself stays identity, so that nodes can be keys."""
        return self.alu(Ops.EQ, other)

    def ne(self, other: UOp | float) -> UOp:
        """Elementwise !=."""
        return self.alu(Ops.NE, other)

    def where(self, yes: UOp | float, no: UOp | float) -> UOp:
        """Select `yes` where this bool is true, else `no`; at least one of them is a UOp."""
        like = yes if isinstance(yes, UOp) else no
        assert isinstance(like, UOp)
        return UOp(Ops.WHERE, like.dtype, (self, like.like(yes), like.like(no)))

    def cast(self, dtype: DType) -> UOp:
        """Convert the value; a scalar dtype keeps the number of lanes."""
        dtype = dtype.vec(self.dtype.lanes)
        return self if dtype is self.dtype else UOp(Ops.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        """Read the same bits as another dtype of equal size."""
        dtype = dtype.vec(self.dtype.lanes)
        return self if dtype is self.dtype else UOp(Ops.BITCAST, dtype, (self,))

    def __repr__(self) -> str:
        arg = "" if self.arg is None else f" {arg_text(self.arg)}"
        return f"<{self.op.name} {self.dtype.name}{arg} of {len(self.src)}>"


def apart(node: UOp, is_constant: bool) -> UOp:
    """Make a node of the same values that is not interned: a RESHAPE to the same shape (`UOp.own`)."""
    new = _new(UOp)
    new.op, new.dtype, new.src, new.arg = Ops.RESHAPE, node.dtype, (node,), node.shape
    new.origin, new.storage, new._shape = current_origin.line, None, node.shape
    new._bounds = new._ranges = new._key = new._simple = new._linear = new._order = MISSING
    new.own, new.first_realize, new.was_named = 2 if is_constant else 1, 0, 1
    return new


def arg_text(arg: Any) -> str:
    """Text of an arg, equal in every process."""
    if isinstance(arg, UOp):
        return f"<{arg.key.hex()}>"
    if isinstance(arg, tuple):
        return f"({','.join(arg_text(item) for item in arg)})"
    if isinstance(arg, float):
        return arg.hex()
    return repr(str(arg)) if isinstance(arg, str) else str(arg)


def closed_ranges(node: UOp) -> tuple[UOp, ...]:
    """The loops that end at this node: those of a REDUCE in a kernel, or of an AFTER."""
    if node.op is Ops.REDUCE and len(node.src) > 1:
        return node.src[node.arg[1] :]
    return node.src[1 + node.arg :] if node.op is Ops.AFTER else ()


_NO_RANGES: frozenset[UOp] = frozenset()


def _ranges_of(node: UOp) -> frozenset[UOp]:
    free = _NO_RANGES
    for s in node.src:
        own: frozenset[UOp] = s._ranges  # filled before: see UOp.ranges
        if own is not free and not own <= free:  # one set object is shared by all nodes with equal sets
            free = own if free <= own else free | own
    if node.op is Ops.RANGE:
        return free | {node}
    closed = closed_ranges(node)
    return free.difference(closed) if closed else free


_SMALL = 1024
_small: dict[int, UOp] = {}  # index constants up to _SMALL: a third of all nodes that index arithmetic creates


def const(dtype: DType, value: Any) -> UOp:
    """A constant: a number of the dtype's own kind, wrapped or rounded to it (a vector dtype: in every lane)."""
    if dtype is dtypes.index and type(value) is int:
        found = _small.get(value)
        if found is None:
            found = UOp(Ops.CONST, dtype, (), value)
            if -_SMALL <= value <= _SMALL:
                _small[value] = found
        return found
    if isinstance(value, tuple):
        return UOp(Ops.CONST, dtype, (), tuple(to_dtype(dtype, item) for item in value))
    return UOp(Ops.CONST, dtype, (), to_dtype(dtype, value))


def index_const(value: UOp | int) -> UOp:
    """A size or position as a UOp of dtype index."""
    return value if isinstance(value, UOp) else const(dtypes.index, value)


def make_range(name: str, size: UOp | int, kind: AxisKind) -> UOp:
    """A loop variable that runs from 0 to size-1."""
    return UOp(Ops.RANGE, dtypes.index, (index_const(size),), (name, kind))


def memory_of(node: UOp) -> UOp:
    """Return the PARAM, LOCAL or REG below an INDEX, AFTER or CARRY."""
    while node.op in (Ops.INDEX, Ops.AFTER, Ops.CARRY):
        node = node.src[0]
    return node


def is_in_order(load: UOp) -> bool:
    """True if a LOAD must not be hoisted above earlier loads: it is marked so and has at least half a cache line."""
    return load.arg == "inorder" and load.dtype.lanes * load.dtype.scalar.size_bytes >= _HALF_LINE


def substitute(root: UOp, table: Mapping[UOp, UOp]) -> UOp:
    """`root` with every node of `table` replaced, once: replacements are not searched again."""
    if not table:
        return root
    done: dict[UOp, UOp] = dict(table)
    for node in root.toposort(stop=lambda u: u in table):
        if node in done:
            continue
        done[node] = with_sources(node, tuple([done[s] for s in node.src]))
    return done[root]


def rebuilt(root: UOp, change: Callable[[UOp, UOp], UOp]) -> UOp:
    """Rebuild `root` with change(node, node on its changed sources) instead of every node."""
    done: dict[UOp, UOp] = {}
    for node in root.toposort():
        done[node] = change(node, with_sources(node, tuple([done[s] for s in node.src])))
    return done[root]


def with_sources(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """Return the node with these sources; its source location is unchanged."""
    if src == node.src:
        return node
    new = UOp(node.op, node.dtype, src, node.arg)
    if new.origin is None:
        new.origin = node.origin
    return new
