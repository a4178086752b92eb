"""The builder of routines: loop programs whose statements run in order, written straight as linear UOps.

A routine is the body of a ROUTINE node: a factorization whose steps read what earlier steps wrote, so that it is not a
tensor expression. `Routine` opens loops, loads and stores; it puts each value into the outermost loop that it
depends on. Every store makes a new version of its memory, so a load after it is another node than one before it.

A batch of small matrices is interleaved: value e of matrix b is at e * batch + b, and a vector has one value of as many
matrices. Otherwise each matrix is contiguous, and vectors run along its rows (`spans`). Tests:
tests/compiler/routines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernmill.ir import AxisKind, DType, Op, OpGroup, Ops, Target, UOp, const, dtypes

__all__ = ["Entries", "Number", "Routine"]

_INT = dtypes.int64


class Number:
    """A number of a routine: a scalar, or one for each lane. The width of an index is a number of adjacent elements."""

    __slots__ = ("of", "uop", "width")

    def __init__(self, of: Routine, uop: UOp, width: int = 1) -> None:
        self.of, self.uop, self.width = of, uop, width

    def _with(self, op: Op, other: Number | float, is_reflected: bool = False) -> Number:
        return self.of.apply(op, other, self) if is_reflected else self.of.apply(op, self, other)

    def __add__(self, other: Number | float) -> Number:
        return self if other == 0 and not self.uop.dtype.is_float else self._with(Ops.ADD, other)

    def __radd__(self, other: float) -> Number:
        return self + other

    def __sub__(self, other: Number | float) -> Number:
        return self._with(Ops.SUB, other)

    def __rsub__(self, other: float) -> Number:
        return self._with(Ops.SUB, other, is_reflected=True)

    def __mul__(self, other: Number | float) -> Number:
        return self if other == 1 and not self.uop.dtype.is_float else self._with(Ops.MUL, other)

    def __rmul__(self, other: float) -> Number:
        return self * other

    def __truediv__(self, other: Number | float) -> Number:
        return self._with(Ops.DIV, other)

    def __rtruediv__(self, other: float) -> Number:
        return self._with(Ops.DIV, other, is_reflected=True)

    def __rshift__(self, other: int) -> Number:
        return self._with(Ops.SHR, other)

    def __and__(self, other: Number) -> Number:
        return self._with(Ops.AND, other)

    def __or__(self, other: Number) -> Number:
        return self._with(Ops.OR, other)

    def __lt__(self, other: Number | float) -> Number:
        return self._with(Ops.LT, other)

    def __le__(self, other: Number | float) -> Number:
        return self._with(Ops.LE, other)

    def __gt__(self, other: Number | float) -> Number:
        return self._with(Ops.LT, other, is_reflected=True)

    def __ge__(self, other: Number | float) -> Number:
        return self._with(Ops.LE, other, is_reflected=True)

    def same(self, other: Number | float) -> Number:
        """True where both are equal."""
        return self._with(Ops.EQ, other)

    def __neg__(self) -> Number:
        return self.of.apply(Ops.NEG, self)

    def __abs__(self) -> Number:
        return self.of.apply(Ops.ABS, self)

    @property
    def is_never(self) -> bool:
        """True if a loop of this size never runs."""
        return self.uop.is_const and self.uop.arg <= 0

    def sqrt(self) -> Number:
        """The square root."""
        return self.of.apply(Ops.SQRT, self)

    def where(self, yes: Number | float, no: Number | float) -> Number:
        """This bool chooses."""
        return self.of.choose(self, yes, no)


class Entries:
    """A row-major matrix in a memory of the routine, from `offset` on: `m[i, j]` loads, `m[i, j] = v` stores."""

    def __init__(self, of: Routine, memory: UOp, columns: int, offset: int = 0) -> None:
        self.of, self.memory, self.columns, self.offset = of, memory, columns, offset

    def _locate(self, at: tuple[Number | int, Number | int]) -> tuple[Number, int]:
        row, column = at
        width = max(i.width if isinstance(i, Number) else 1 for i in at)
        return self.of.as_index(row) * self.columns + column + self.offset, width

    def __getitem__(self, at: tuple[Number | int, Number | int]) -> Number:
        return self.of.load(self.memory, *self._locate(at))

    def __setitem__(self, at: tuple[Number | int, Number | int], value: Number | float) -> None:
        self.of.store(self.memory, *self._locate(at), value)


@dataclass(slots=True)
class _Scope:
    """An open loop: what is in it so far, and what it writes."""

    loop: UOp | None
    items: list[UOp] = field(default_factory=list[UOp])
    written: dict[UOp, UOp] = field(default_factory=dict[UOp, UOp])  # memory -> its last store
    before: dict[UOp, UOp] = field(default_factory=dict[UOp, UOp])  # memory -> version outside


class Routine:
    """A routine under construction for a target: `params[0]` is written, the others are read."""

    def __init__(self, target: Target, params: Sequence[UOp], sizes: Sequence[int], batch: int, interleaved: bool):
        self.target, self.params, self.sizes, self.batch = target, params, sizes, batch
        self.dtype: DType = params[0].dtype
        self.is_interleaved = interleaved
        vector = 1 if target.group_items else target.lanes(self.dtype)
        self.lanes = 1  # of values outside of spans: matrices that are computed together
        self.vector = vector
        self.span_lanes = 1 if interleaved else vector
        self.base: Number | None = None  # number of the first of these matrices
        self.shared: set[UOp] = set()  # memory of which all matrices read the same
        self.scopes = [_Scope(None)]
        self.depth_of: dict[UOp, int] = {}
        self.version: dict[UOp, UOp] = {p: p for p in params}
        self.count = 0
        for p in params:
            self._hoist(p)

    # --- nodes
    def _hoist(self, u: UOp) -> UOp:
        """Have a pure node computed in the outermost loop that it depends on."""
        if u not in self.depth_of:
            depth = max([self.depth_of[self._hoist(s)] for s in u.src], default=0)
            self.scopes[depth].items.append(u)
            self.depth_of[u] = depth
        return u

    def _pin(self, u: UOp) -> UOp:
        """Have a node computed here."""
        self.scopes[-1].items.append(u)
        self.depth_of[u] = len(self.scopes) - 1
        return u

    def _number(self, u: UOp, width: int = 1) -> Number:
        return Number(self, self._hoist(u), width)

    def number(self, value: Number | float, like: UOp) -> UOp:
        """A number in the dtype and lanes of a node."""
        if not isinstance(value, Number):
            return self._hoist(const(like.dtype, value))
        u, lanes = value.uop, like.dtype.lanes
        return u if u.dtype.lanes == lanes else self._hoist(UOp(Ops.BROADCAST, u.dtype.vec(lanes), (u,)))

    def as_index(self, value: Number | int) -> Number:
        """An index as a value."""
        return value if isinstance(value, Number) else self._number(const(_INT, value))

    def apply(self, op: Op, *operands: Number | float) -> Number:
        """An elementwise op; scalars are repeated for each lane."""
        values = [v for v in operands if isinstance(v, Number)]
        like = max((v.uop for v in values), key=lambda u: u.dtype.lanes)
        first, *others = (self.number(v, like) for v in operands)
        if first.dtype is _INT and op.py is not None and all(u.is_const for u in (first, *others)):
            kind = dtypes.bool if op.group is OpGroup.COMPARE else _INT
            return self._number(const(kind, op.py(first.arg, *(u.arg for u in others))))
        return self._number(first.alu(op, *others), max(v.width for v in values))

    def fma(self, a: Number, b: Number, c: Number) -> Number:
        """a * b + c, rounded once where the target can."""
        return self.apply(Ops.FMA, a, b, c) if Ops.FMA in self.target.ops else a * b + c

    def choose(self, condition: Number, yes: Number | float, no: Number | float) -> Number:
        """`yes` where the condition is true, else `no`."""
        given = [v.uop for v in (yes, no) if isinstance(v, Number)]
        kind = given[0].dtype.scalar if given else self.dtype
        lanes = max(u.dtype.lanes for u in (condition.uop, *given))
        like = self._hoist(const(kind.vec(lanes), 0.0 if kind.is_float else 0))
        bools = self._hoist(const(dtypes.bool.vec(lanes), False))
        test = self.number(condition, bools)
        return self._number(UOp(Ops.WHERE, like.dtype, (test, self.number(yes, like), self.number(no, like))))

    def constant(self, value: float) -> Number:
        """A number in the dtype of the data, in each lane."""
        return self._number(const(self.dtype.vec(self.lanes), float(value)))

    def zero(self, width: int) -> Number:
        """Zeros, as many as an index of this width reads."""
        return self._number(const(self.dtype.vec(self.lanes * width), 0.0))

    def indexed(self, number: Number) -> Number:
        """A float as an index."""
        return self._number(UOp(Ops.CAST, _INT, (number.uop,)))

    def lane(self, number: Number, lane: int) -> Number:
        """One lane of a vector."""
        return self._number(UOp(Ops.LANE, number.uop.dtype.scalar, (number.uop,), lane))

    def any_lane(self, condition: Number) -> Number:
        """1 if the condition holds in any lane, else 0, as an index."""
        number = self.choose(condition, self.constant(1.0), 0.0).uop
        if number.dtype.lanes > 1:
            number = self.folded(number).uop
        return self._number(UOp(Ops.WHERE, _INT, (self._hoist(const(number.dtype, 0.0)).alu(Ops.LT, number),
                                                 const(_INT, 1), const(_INT, 0))))  # fmt: skip

    def floated(self, index: Number) -> Number:
        """An index in the dtype of the data, in each lane."""
        return Number(self, self.number(self._number(UOp(Ops.CAST, self.dtype, (index.uop,))), self.constant(0).uop))

    # --- memory
    def matrix(self, slot: int, columns: int, offset: int = 0) -> Entries:
        """A matrix in an argument of the routine."""
        return Entries(self, self.params[slot], columns, offset)

    def array(self, count: int) -> Entries:
        """A kernel-local array as a matrix of one row."""
        self.count += 1
        memory = UOp(Ops.LOCAL, self.dtype, (), (f"local{self.count}", count * self.lanes))
        self.scopes[0].items.append(memory)
        self.depth_of[memory] = 0
        self.version[memory] = memory
        return Entries(self, memory, count)

    def _address(self, memory: UOp, index: Number, width: int) -> UOp:
        if memory in self.shared:
            return self._hoist(UOp(Ops.INDEX, self.dtype.vec(width), (memory, index.uop)))
        if memory.op is Ops.LOCAL:
            at = index * self.lanes
        else:
            assert self.base is not None
            size = self.sizes[self.params.index(memory)]
            at = index * self.batch + self.base if self.is_interleaved else self.base * size + index
        lanes = self.lanes * width
        return self._hoist(UOp(Ops.INDEX, self.dtype.vec(lanes), (self.version[memory], at.uop)))

    def load(self, memory: UOp, index: Number, width: int) -> Number:
        """The value at an index, or as many adjacent ones as the width says."""
        address = self._address(memory, index, width)
        return self._number(UOp(Ops.LOAD, address.dtype, (address,)))

    def store(self, memory: UOp, index: Number, width: int, value: Number | float) -> None:
        """Write a value at an index."""
        address = self._address(memory, index, width)
        kind = self._hoist(const(address.dtype, 0.0))
        store = self._pin(UOp(Ops.STORE, dtypes.void, (address, self.number(value, kind))))
        self.scopes[-1].written[memory] = store
        self.version[memory] = self._pin(UOp(Ops.AFTER, memory.dtype, (memory, store), 1))

    # --- loops
    @contextmanager
    def loop(self, size: Number | int, kind: AxisKind = AxisKind.LOOP, first: int | None = None) -> Generator[Number]:
        """Run the statements of the block for 0 to size - 1, in order."""
        self.count += 1
        name = f"r{self.count}"
        arg = (name, kind) if first is None else (name, kind, first)
        head = UOp(Ops.RANGE, _INT, (self.as_index(size).uop,), arg)
        self.scopes.append(_Scope(head, before=dict(self.version)))
        self._pin(head)
        for memory in self.version:
            self.version[memory] = self._pin(UOp(Ops.CARRY, memory.dtype, (memory, head)))
        yield Number(self, head)
        self._end_loop()

    def _end_loop(self) -> None:
        scope = self.scopes.pop()
        assert scope.loop is not None
        outside, depth = self.scopes[-1], len(self.scopes)
        for node, where in list(self.depth_of.items()):
            if where == depth:
                del self.depth_of[node]
        outside.items += [*scope.items, UOp(Ops.END, dtypes.void, (scope.loop,))]
        for memory in self.version:
            store = scope.written.get(memory)
            if store is None:
                self.version[memory] = scope.before.get(memory, memory)
                continue
            outside.written[memory] = store
            self.version[memory] = self._pin(UOp(Ops.AFTER, memory.dtype, (memory, store, scope.loop), 1))

    def between(self, low: Number | int, high: Number | int, kind: AxisKind = AxisKind.LOOP) -> Iterator[Number]:
        """A loop from low to high - 1: `for i in k.between(a, b)` has one iteration in Python."""
        size = high - low if isinstance(low, int) and isinstance(high, int) else self.as_index(high) - low
        with self.loop(size, kind) as i:
            yield i + low

    def downwards(self, high: Number | int, low: Number | int) -> Iterator[Number]:
        """A loop from high - 1 down to low."""
        with self.loop(self.as_index(high) - low) as i:
            yield self.as_index(high) - 1 - i

    def spans(self, low: Number | int, high: Number | int, most: int | None = None) -> Iterator[Number]:
        """Indices from low to high - 1, as many at once as a vector has lanes, or `most`: the body is written once for
        vectors and once for the rest."""
        width = min(self.span_lanes, most or self.span_lanes)
        if width == 1:
            yield from self.between(low, high)
            return
        count = self.as_index(high) - low
        whole = count >> (width.bit_length() - 1)
        if not whole.is_never:
            with self.loop(whole) as i:
                yield Number(self, (i * width + low).uop, width)
        if not (count - whole * width).is_never:
            yield from self.between(whole * width + low, high)

    # --- sums
    def folded(self, u: UOp) -> Number:
        """The sum of all lanes, halves first."""
        while u.dtype.lanes > 1:
            half = u.dtype.lanes // 2
            if half == 1:
                low, high = (UOp(Ops.LANE, u.dtype.scalar, (u,), lane) for lane in (0, 1))
            else:
                low, high = (UOp(Ops.SHUFFLE, u.dtype.scalar.vec(half), (u, u), tuple(range(first, first + half)))
                             for first in (0, half))  # fmt: skip
            u = low + high
        return self._number(u)

    def register(self, first: Number) -> UOp:
        """An accumulator."""
        self.count += 1
        return self._pin(UOp(Ops.REG, first.uop.dtype, (first.uop,), f"acc{self.count}"))

    def accumulated(self, size: Number | int, firsts: Sequence[Number],
                    step: Callable[[Number, list[Number]], Sequence[Number]]) -> list[Number]:  # fmt: skip
        """Run accumulators through a loop: `step(i, values)` returns their next values."""
        registers = [self.register(first) for first in firsts]
        with self.loop(size) as i:
            now = [Number(self, self._pin(UOp(Ops.CARRY, r.dtype, (r, i.uop)))) for r in registers]
            after = step(i, now)
            sets = [self._pin(UOp(Ops.SET, dtypes.void, (r, v.uop))) for r, v in zip(registers, after, strict=True)]
            head = i.uop
        return [Number(self, self._pin(UOp(Ops.AFTER, r.dtype, (r, s, head), 1)))
                for r, s in zip(registers, sets, strict=True)]  # fmt: skip

    def total(
        self,
        low: Number | int,
        high: Number | int,
        terms: Callable[[Number], Sequence[tuple[Number, Number]]],
        number: int = 1,
    ) -> list[Number]:
        """Sums of this number of products over an index from low to high - 1."""
        width, count = self.span_lanes, self.as_index(high) - low
        done: Number | int = 0
        firsts = [self.constant(0.0)] * number

        def step(i: Number, now: list[Number]) -> list[Number]:
            return [self.fma(a, b, c) for (a, b), c in zip(terms(i), now, strict=True)]

        if width > 1 and not (count >> (width.bit_length() - 1)).is_never:
            whole = count >> (width.bit_length() - 1)
            wide = self._number(const(self.dtype.vec(width), 0.0))
            sums = self.accumulated(
                whole, [wide] * number, lambda i, now: step(Number(self, (i * width + low).uop, width), now)
            )
            firsts = [self.folded(s.uop) for s in sums]
            done = whole * width
        return self.accumulated(count - done, firsts, lambda i, now: step(i + done + low, now))

    # --- the whole
    def linear(self) -> list[UOp]:
        """The finished list."""
        (scope,) = self.scopes
        return scope.items
