"""Gathers and scatters become contiguous loads and stores, and shuffles in registers.

When: after vectorize. Why there: gathers and scatters exist, each with one vector of indices. There are two families. A
*transposed block*: indices are consecutive from one vector to the next, lanes have a large stride. The row of a lane is
one contiguous access, and log2(n) steps of shuffles transpose the block. An *interleaved access*: lanes have a small
stride (every second element, the colors of a picture, the four bytes of an int8 dot product). All memory between the
first and the last index is read as whole vectors, from which shuffles select. Guarantees: the same values at the same
indices; elements that were not requested are read only inside the buffer, and never written. Tests:
tests/compiler/kernel/test_shuffle_lanes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernmill.ir import DType, Ops, Target, UOp, const, dtypes, from_linear, linear, memory_of, simplify, with_sources

from .vectorize import spread

__all__ = ["entry", "merged", "shuffle", "shuffle_lanes", "side_by_side"]

_MOST_VECTORS = 4  # of contiguous memory that one gather is selected from
_LEAST_ROWS = 4  # a block of fewer rows costs as much as gathers
_WORD = 4  # bytes
_BLOCK_BYTES = 16
_MOST_READERS = 4  # lanes that may share an index, each with its own gate


@dataclass(frozen=True, slots=True)
class _Access:
    """A gather or scatter: lane n has the index `terms` + start + steps[n]."""

    node: UOp
    memory: UOp
    terms: tuple[tuple[UOp, int], ...]
    start: int
    steps: tuple[int, ...]
    gate: UOp | None

    def at(self, offset: int) -> UOp:
        """Return the scalar index at this offset from the common part of the family."""
        return simplify(from_linear(dict(self.terms), offset, dtypes.index))

    def offsets(self) -> list[int]:
        """The offset of each lane from the common part of the family."""
        return [self.start + step for step in self.steps]

    @property
    def scalar(self) -> DType:
        """Of one lane."""
        return self.node.src[0].dtype.scalar


def shuffle_lanes(ast: UOp, target: Target) -> UOp:
    """Return the kernel with contiguous accesses and shuffles instead of gathers and scatters, where they pay."""
    order = ast.toposort()
    if not any(node.op is Ops.INDEX and node.src[1].dtype.lanes > 1 for node in order):
        return ast
    families: dict[UOp, list[_Access]] = {}
    for family in _families([node for node in order if node.op is Ops.LOAD]):
        families.update({access.node: family for access in family})
    done: dict[UOp, UOp] = {}
    for node in order:
        if node in families:  # the sources of one are done, and their relevant part is the same for all
            family = [_with_new_sources(access, done) for access in families[node]]
            turned = _loads(family, target)
            for access in family:
                families.pop(access.node)
                if access.start in turned:
                    done[access.node] = turned[access.start]
        if node in done:
            continue
        new = with_sources(node, tuple([done[s] for s in node.src]))
        done[node] = _with_stores(new, target) if node.op in (Ops.SINK, Ops.AFTER) else new
    return done[ast]


# --- looking
def _families(nodes: Sequence[UOp]) -> Iterator[list[_Access]]:
    """Yield accesses of the same memory, with the same gate, that differ by a constant."""
    found: dict[object, list[_Access]] = {}
    for node in nodes:
        access = _access(node)
        if access is not None:
            key = (access.memory, access.terms, access.steps, access.gate, node.arg)
            found.setdefault(key, []).append(access)
    yield from found.values()


def _access(node: UOp) -> _Access | None:
    index = node.src[0]
    if index.src[1].dtype.lanes == 1:
        return None
    read = _lane_offsets(index.src[1])
    if read is None:
        return None
    terms, offsets = read
    steps = tuple(offset - offsets[0] for offset in offsets)
    return _Access(node, index.src[0], tuple(terms.items()), offsets[0], steps, index.gate)


def _lane_offsets(u: UOp) -> tuple[dict[UOp, int], list[int]] | None:
    """Split a vector of indices into one scalar sum and a constant for each lane."""
    lanes = u.dtype.lanes
    terms, offset = linear(u)
    scalar: dict[UOp, int] = {}
    offsets = [offset] * lanes
    for atom, k in terms.items():
        if atom.op is Ops.CONST:
            offsets = [total + k * int(value) for total, value in zip(offsets, atom.arg, strict=True)]
        elif atom.op is Ops.BROADCAST:
            inner, more = linear(atom.src[0])
            offsets = [total + k * more for total in offsets]
            for part, count in inner.items():
                scalar[part] = scalar.get(part, 0) + k * count
        else:
            return None
    return {part: k for part, k in sorted(scalar.items(), key=lambda item: item[0].key) if k}, offsets


def _with_new_sources(access: _Access, done: dict[UOp, UOp]) -> _Access:
    """Return the same access with rewritten sources."""
    terms = tuple((done[atom], k) for atom, k in access.terms)
    gate = None if access.gate is None else done[access.gate]
    return replace(access, memory=done[access.memory], terms=terms, gate=gate)


def _runs(starts: Sequence[int], most: int, size_bytes: int) -> Iterator[list[int]]:
    """Blocks of 2, 4, 8, ... numbers that follow each other."""
    rest = sorted(starts)
    least = 2 if size_bytes < 4 else _LEAST_ROWS
    while rest:
        length = 1
        while length < min(len(rest), most) and rest[length] == rest[0] + length:
            length += 1
        length = 1 << (length.bit_length() - 1)
        if length >= least:
            yield rest[:length]
        rest = rest[length:]


def _stretches(family: Iterable[_Access]) -> Iterator[list[_Access]]:
    """Yield accesses whose index ranges overlap or are adjacent."""
    part: list[_Access] = []
    end = 0
    for access in sorted(family, key=lambda access: min(access.offsets())):
        if part and min(access.offsets()) > end:
            yield part
            part = []
        end = max(end if part else 0, 1 + max(access.offsets()))
        part.append(access)
    if part:
        yield part


def _is_block(family: list[_Access]) -> bool:
    steps = family[0].steps
    return len(steps) & (len(steps) - 1) == 0 and max(steps) - min(steps) >= _MOST_VECTORS * len(steps)


# --- loads
def _loads(family: list[_Access], target: Target) -> dict[int, UOp]:
    """Return replacements for the gathers of a family, by their starts."""
    one = family[0]
    by_start = {access.start: access for access in family}
    if not _is_block(family):
        return {start: v for part in _stretches(by_start.values()) for start, v in _picked(part, target).items()}
    turned: dict[int, UOp] = {}
    for run in _runs(list(by_start), _longest(one, target), one.scalar.size_bytes):
        rows = [_row(one, run[0], lane, len(run)) for lane in range(len(one.steps))]
        columns = _columns([_bytes_load(one, row) for row in rows], target)
        turned.update(zip(run, [column.cast(one.scalar) for column in columns], strict=True))
    return turned


def _bytes_load(one: _Access, index: UOp) -> UOp:
    return _as_bytes(UOp(Ops.LOAD, index.dtype, (index,), one.node.arg))


def _as_bytes(u: UOp) -> UOp:
    """Return a value that shuffles take: bools as their bytes."""
    return u.cast(dtypes.uint8) if u.dtype.is_bool else u


def _longest(one: _Access, target: Target) -> int:
    """Return the elements of a block that one lane covers: narrow ones fill a register, since they are transposed as
    words."""
    lanes = len(one.steps)
    return max(lanes, min(lanes * _WORD // one.scalar.size_bytes, target.lanes(one.scalar)))


def _row(one: _Access, start: int, lane: int, count: int) -> UOp:
    """Return the INDEX of the `count` elements that one lane of a block covers."""
    gate: tuple[UOp, ...] = ()
    if one.gate is not None:
        is_vector = one.gate.dtype.lanes > 1
        gate = (simplify(UOp(Ops.LANE, dtypes.bool, (one.gate,), lane)) if is_vector else one.gate,)
    return UOp(Ops.INDEX, one.scalar.vec(count), (one.memory, one.at(start + one.steps[lane]), *gate))


def _touched(family: list[_Access]) -> dict[int, list[int]]:
    """Return each index, and the lanes that access it."""
    touched: dict[int, dict[int, None]] = {}
    for access in family:
        for lane, offset in enumerate(access.offsets()):
            touched.setdefault(offset, {})[lane] = None
    return {offset: list(lanes) for offset, lanes in touched.items()}


def _picked(family: list[_Access], target: Target) -> dict[int, UOp]:
    """Read an interleaved access as whole vectors, and select the lanes of each gather."""
    one, touched = family[0], _touched(family)
    is_masked = one.gate is not None and one.gate.dtype.lanes > 1
    if is_masked and max(map(len, touched.values())) > _MOST_READERS:
        return {} if len(family) == 1 else {s: v for access in family for s, v in _picked([access], target).items()}
    low, high = min(touched), max(touched)
    width = min(target.lanes(one.scalar), 1 << (high - low).bit_length())
    if width < 2 or (max(one.steps) - min(one.steps)) // width >= _MOST_VECTORS:
        return {}
    vectors: dict[int, UOp] = {}
    for number in {(offset - low) // width for offset in touched}:
        first = low + number * width
        lanes = [touched.get(first + n, []) for n in range(width)]
        index = UOp(Ops.INDEX, one.scalar.vec(width), (one.memory, one.at(first), *_mask(one, first, lanes)))
        vectors[number] = _bytes_load(one, index)
    found = {
        access.start: merged([(vectors[(p - low) // width], (p - low) % width) for p in access.offsets()]).cast(
            one.scalar
        )
        for access in family
    }
    if one.gate is None or not is_masked or max(map(len, touched.values())) == 1:
        return found
    zero = const(one.scalar.vec(len(one.steps)), 0)  # an element may have been read for a different lane
    return {start: one.gate.where(value, zero) for start, value in found.items()}


def _mask(one: _Access, first: int, lanes: Sequence[Sequence[int]]) -> tuple[UOp, ...]:
    """Return the gate of a vector whose lanes belong to several lanes of the gather, or to none: true if one of them
    is."""
    bools = dtypes.bool.vec(len(lanes))
    if one.gate is not None and one.gate.dtype.lanes > 1:
        closed = const(one.gate.dtype, False)
        gate: UOp | None = None
        for number in range(max(map(len, lanes))):
            picks = tuple(own[number] if number < len(own) else one.gate.dtype.lanes for own in lanes)
            part = UOp(Ops.SHUFFLE, bools, (one.gate, closed), picks)
            gate = part if gate is None else gate | part
        return () if gate is None else (gate,)
    is_whole, touched = all(lanes), const(bools, tuple(map(bool, lanes)))
    if one.gate is not None:
        return (one.gate,) if is_whole else (spread(one.gate, len(lanes)) & touched,)
    count, (low, high) = memory_of(one.memory).arg[1], one.at(first).bounds
    is_inside = isinstance(count, int) and low >= 0 and high + len(lanes) <= count
    return () if is_whole or is_inside else (touched,)


# --- stores
def _with_stores(node: UOp, target: Target) -> UOp:
    """Rewrite the scatters among the effects of a SINK or AFTER."""
    first, last = (1, 1 + node.arg) if node.op is Ops.AFTER else (0, len(node.src))
    effects = node.src[first:last]
    instead: dict[UOp, list[UOp]] = {}
    for family in _families([effect for effect in effects if effect.op is Ops.STORE]):
        instead.update(_stores(family, target))
    if not instead:
        return node
    turned = [new for effect in effects for new in instead.get(effect, [effect])]
    arg = len(turned) if node.op is Ops.AFTER else node.arg
    return node.replace(src=(*node.src[:first], *turned, *node.src[last:]), arg=arg)


def _stores(family: list[_Access], target: Target) -> dict[UOp, list[UOp]]:
    """Return replacements for the scatters of a family: the first one does it all."""
    one, touched = family[0], _touched(family)
    by_start = {access.start: access for access in family}
    if len(touched) < len(family) * len(one.steps):  # some element is written twice: the order matters
        return {}
    if not _is_block(family):
        return {old: new for part in _stretches(family) for old, new in _interleaved(part, target).items()}
    turned: dict[UOp, list[UOp]] = {}
    for run in _runs(list(by_start), _longest(one, target), one.scalar.size_bytes):
        rows = _rows([_as_bytes(by_start[start].node.src[1]) for start in run], target)
        turned.update({by_start[start].node: [] for start in run})
        turned[by_start[run[0]].node] = [
            UOp(Ops.STORE, dtypes.void, (_row(one, run[0], lane, len(run)), row.cast(one.scalar)), one.node.arg)
            for lane, row in enumerate(rows)
        ]
    return turned


def _interleaved(family: list[_Access], target: Target) -> dict[UOp, list[UOp]]:
    """Scatters that fill a stretch of memory without a gap, as stores of whole vectors."""
    one = family[0]
    values = {p: (_as_bytes(access.node.src[1]), lane) for access in family for lane, p in enumerate(access.offsets())}
    touched, low = _touched(family), min(values)
    width = min(target.lanes(one.scalar), len(values) & -len(values))
    if max(values) - low + 1 != len(values) or width < 2:
        return {}
    stores: list[UOp] = []
    zipped = _zipped(values, low, width)
    for number, first in enumerate(range(low, low + len(values), width)):
        mask = _mask(one, first, [touched[first + n] for n in range(width)])
        index = UOp(Ops.INDEX, one.scalar.vec(width), (one.memory, one.at(first), *mask))
        value = zipped[number] if zipped else _row_of([values[first + n] for n in range(width)], target)
        stores.append(UOp(Ops.STORE, dtypes.void, (index, value.cast(one.scalar)), one.node.arg))
    return {access.node: stores if access is one else [] for access in family}


def _row_of(lanes: list[tuple[UOp, int]], target: Target) -> UOp:
    """Return a vector of lanes to store: if they are interleaved byte vectors, operations on all of them are applied
    once."""
    vectors, own = list(dict.fromkeys(vector for vector, _ in lanes)), lanes[0][0].dtype
    is_weave = lanes == [(vector, lane) for lane in range(own.lanes) for vector in vectors]
    return side_by_side(vectors, own.lanes, target) if is_weave and own.size_bytes == own.lanes else merged(lanes)


def _zipped(values: dict[int, tuple[UOp, int]], low: int, width: int) -> list[UOp]:
    """Return the stretch as whole interleaved vectors; none if it has a different form.

    CPUs interleave inside each block of 16 bytes; such blocks are then moved unchanged.
    """
    count = len(values) // width
    vectors = [values[low + n][0] for n in range(count)]
    block = _BLOCK_BYTES // vectors[0].dtype.scalar.size_bytes
    is_whole = count & (count - 1) == 0 and count <= block and all(v.dtype.lanes == width for v in vectors)
    if not is_whole or any(values[low + n] != (vectors[n % count], n // count) for n in range(len(values))):
        return []
    parts, blocks = _interleave(vectors, min(block, width)), max(1, width // block)
    if blocks == count:
        return _sorted_blocks(parts, width, block)
    order = [(parts[n % count], n // count * block + lane) for n in range(count * blocks) for lane in range(block)]
    return [merged(order[start : start + width]) for start in range(0, len(order), width)]


def _interleave(vectors: list[UOp], block: int) -> list[UOp]:
    """Of each block of lanes the first of every vector, then the second, ..; their count is a power of two."""
    if len(vectors) == 1:
        return vectors
    width = vectors[0].dtype.lanes
    pairs = zip(_interleave(vectors[::2], block), _interleave(vectors[1::2], block), strict=True)
    picks = [
        tuple(n // block * block + half + n % block // 2 + n % 2 * width for n in range(width))
        for half in (0, block // 2)
    ]
    return [shuffle(a, b, half) for a, b in pairs for half in picks]


# --- shuffles
def merged(lanes: Sequence[tuple[UOp, int]]) -> UOp:
    """The vector of these lanes of vectors of one dtype."""
    traced = [_origin(vector, lane) for vector, lane in lanes]
    lanes = traced if _is_whole(traced) else lanes
    sources = list(dict.fromkeys(vector for vector, _ in lanes))
    width, own = len(lanes), sources[0].dtype.lanes
    lane_of = {vector: (number, 0) for number, vector in enumerate(sources)}
    while own < width and len(sources) > 1:  # narrow ones are concatenated first
        lane_of = {vector: (number // 2, at + number % 2 * own) for vector, (number, at) in lane_of.items()}
        if len(sources) % 2:
            sources.append(sources[-1])
        sources = [shuffle(a, b, tuple(range(2 * own))) for a, b in zip(sources[::2], sources[1::2], strict=True)]
        own *= 2
    where = [(lane_of[vector][0], lane_of[vector][1] + lane) for vector, lane in lanes]
    if len(sources) <= 2:
        return shuffle(sources[0], sources[-1], tuple([number * own + lane for number, lane in where]))
    total, steps = sources[0], where + [(0, 0)] * (own - width)
    picks = [lane if number == 0 else n for n, (number, lane) in enumerate(steps)]
    for count, source in enumerate(sources[1:], 1):
        picks = [own + lane if number == count else pick for (number, lane), pick in zip(steps, picks, strict=True)]
        total = shuffle(total, source, tuple(picks))
        picks = list(range(own))
    return total if own == width else shuffle(total, total, tuple(range(width)))


def shuffle(a: UOp, b: UOp, picks: tuple[int, ...]) -> UOp:
    """Shuffle the lanes of a followed by b. A shuffle of shuffles of the same two vectors is one shuffle."""
    ends = [_pick((a, b), pick) for pick in picks]
    origin = [_pick(v.src, v.arg[lane]) if v.op is Ops.SHUFFLE else (v, lane) for v, lane in ends]
    sources = list(dict.fromkeys(vector for vector, _ in origin))
    lanes = sources[0].dtype.lanes
    if len(sources) > 2 or sources[-1].dtype.lanes != lanes:
        return UOp(Ops.SHUFFLE, a.dtype.vec(len(picks)), (a, b), picks)
    lanes_of_both = tuple(lane + (lanes if vector is not sources[0] else 0) for vector, lane in origin)
    if lanes_of_both == tuple(range(lanes)):
        return sources[0]
    return UOp(Ops.SHUFFLE, a.dtype.vec(len(picks)), (sources[0], sources[-1]), lanes_of_both)


def _pick(sources: Sequence[UOp], lane: int) -> tuple[UOp, int]:
    (a, b), own = sources, sources[0].dtype.lanes
    return (a, lane) if lane < own else (b, lane - own)


def _origin(vector: UOp, lane: int) -> tuple[UOp, int]:
    """Return the vector and the lane that a lane of a shuffle comes from."""
    while vector.op is Ops.SHUFFLE:
        vector, lane = _pick(vector.src, vector.arg[lane])
    return vector, lane


def _is_whole(lanes: Sequence[tuple[UOp, int]]) -> bool:
    """True if these are whole consecutive vectors."""
    own = lanes[0][0].dtype.lanes
    firsts = [vector for vector, _ in lanes[::own] for _ in range(own)]
    is_even = own > 1 and all(vector.dtype.lanes == own for vector in firsts)
    return is_even and list(lanes) == [(vector, n % own) for n, vector in enumerate(firsts)]


def side_by_side(values: Sequence[UOp], lanes: int, target: Target) -> UOp:
    """Interleave values of one byte: lane n of value m is lane len(values) * n + m of the result.

    Operations on all of them are applied to the interleaved vector; loads that are interleaved in memory become one
    load.
    """
    first, count = values[0], len(values)
    if all(u.dtype.lanes == 1 for u in values):
        row = _neighbours(values) or UOp(Ops.LANES, first.dtype.vec(count), tuple(values))
        return row if lanes == 1 else shuffle(row, row, tuple(range(count)) * lanes)
    if all(u.is_const for u in values):
        is_one = all(u.arg == first.arg for u in values)
        return const(first.dtype.vec(count * lanes), first.arg if is_one else tuple(u.arg for u in values) * lanes)
    is_alike = first.op.is_elementwise and all(_is_alike(u, first) for u in values)
    if is_alike and all(s.dtype.size_bytes == s.dtype.lanes for s in first.src):
        mixed = (side_by_side([u.src[n] for u in values], lanes, target) for n in range(len(first.src)))
        return UOp(first.op, first.dtype.vec(count * lanes), tuple(mixed), first.arg)
    entries = [found for u in values if (found := entry(u))]
    if len(entries) == count and len({found[1:] for found in entries}) == 1:
        indices, (_, memory, offset) = side_by_side([found[0] for found in entries], lanes, target), entries[0]
        index = UOp(Ops.INDEX, first.dtype.vec(count * lanes), (memory, indices.cast(dtypes.index) + offset))
        return UOp(Ops.LOAD, index.dtype, (index,))
    vectors = [_of_words(spread(u, lanes), target) for u in values]
    return merged([(vector, lane) for lane in range(lanes) for vector in vectors])


def entry(u: UOp) -> tuple[UOp, UOp, int] | None:
    """For an unmasked byte gather with byte indices, return the indices, the buffer, and the base offset."""
    is_gather = u.op is Ops.LOAD and u.dtype.scalar in (dtypes.int8, dtypes.uint8) and u.src[0].gate is None
    terms, offset = linear(u.src[0].src[1]) if is_gather else ({}, 0)
    byte, step = next(iter(terms.items()), (u, 0))
    is_entry = len(terms) == step == 1 and byte.op is Ops.CAST and byte.src[0].dtype is dtypes.uint8.vec(u.dtype.lanes)
    return (byte.src[0], u.src[0].src[0], offset) if is_entry else None


def _of_words(u: UOp, target: Target) -> UOp:
    """Return one byte of each of several numbers, selected from all their bytes; other values unchanged."""
    number, by = u.src[0] if u.op is Ops.CAST else u, 0
    if number.op is Ops.SHR and number.src[1].is_const:
        number, by = number.src[0], int(number.src[1].arg)
    size = number.dtype.scalar.size_bytes
    if u.op is not Ops.CAST or not u.dtype.is_int or not number.dtype.is_int or size < _WORD or by % 8:
        return u
    if size * u.dtype.lanes > target.most_lanes:  # the language has no vector of all bytes
        return u
    read = _read_as(number, u.dtype.scalar.vec(size * u.dtype.lanes))
    return shuffle(read, read, tuple(range(by // 8, read.dtype.lanes, size)))


def _is_alike(u: UOp, other: UOp) -> bool:
    own, others = ([s.dtype.scalar for s in node.src] for node in (u, other))
    return u.op is other.op and u.arg == other.arg and own == others and u.dtype.scalar is other.dtype.scalar


def _neighbours(values: Sequence[UOp]) -> UOp | None:
    """Return contiguous scalars as one load."""
    if any(u.op is not Ops.LOAD or u.src[0].gate is not None for u in values):
        return None
    sums = [linear(u.src[0].src[1]) for u in values]
    memory, first = values[0].src[0].src[:2]
    is_row = all(
        u.src[0].src[0] is memory and terms == sums[0][0] and offset == sums[0][1] + n
        for n, (u, (terms, offset)) in enumerate(zip(values, sums, strict=True))
    )
    kind = values[0].dtype.vec(len(values))
    return UOp(Ops.LOAD, kind, (UOp(Ops.INDEX, kind, (memory, first)),), values[0].arg) if is_row else None


def _columns(rows: Sequence[UOp], target: Target) -> list[UOp]:
    """Transpose: vector n has lane n of every row. Neighbours that fill a word are transposed together if vectors
    allow it."""
    scalar, lanes = rows[0].dtype.scalar, rows[0].dtype.lanes
    group = _WORD // min(_WORD, scalar.size_bytes)
    if group == 1 or lanes <= group or len(rows) * group > target.most_lanes:
        return _transposed(rows)
    words = _transposed([_read_as(u, dtypes.uint32.vec(lanes // group)) for u in rows])
    wide = [_read_as(u, scalar.vec(len(rows) * group)) for u in words]
    return [shuffle(u, u, tuple(range(n, len(rows) * group, group))) for u in wide for n in range(group)]


def _rows(columns: Sequence[UOp], target: Target) -> list[UOp]:
    """Invert `_columns`."""
    scalar, lanes = columns[0].dtype.scalar, columns[0].dtype.lanes
    group = _WORD // min(_WORD, scalar.size_bytes)
    if group == 1 or len(columns) <= group or lanes * group > target.most_lanes:
        return _transposed(columns)
    parts = [columns[n : n + group] for n in range(0, len(columns), group)]
    mixed = [merged([(u, lane) for lane in range(lanes) for u in part]) for part in parts]
    words = _transposed([_read_as(u, dtypes.uint32.vec(lanes)) for u in mixed])
    return [_read_as(u, scalar.vec(len(columns))) for u in words]


def _read_as(u: UOp, dtype: DType) -> UOp:
    return UOp(Ops.BITCAST, dtype, (u,))


def _transposed(rows: Sequence[UOp]) -> list[UOp]:
    """Transpose: vector n has lane n of every row. Counts of rows and of lanes are powers of two.

    Values that share 16 bytes are interleaved, then such blocks are sorted: each step is one instruction.
    Source: J. O. Eklundh, A fast computer method for matrix transposing, IEEE Trans. Computers C-21 (1972).
    """
    count, lanes = len(rows), rows[0].dtype.lanes
    side = min(count, lanes)
    vectors = [merged([(row, lane) for row in rows[n::side] for lane in range(lanes)]) for n in range(side)]  # squares
    block = min(side, _BLOCK_BYTES // rows[0].dtype.scalar.size_bytes)
    mixed = [_interleave(vectors[n : n + block], block) for n in range(0, side, block)]
    columns = [_sorted_blocks(list(parts), side, block) for parts in zip(*mixed, strict=True)]
    vectors = [vector for group in zip(*columns, strict=True) for vector in group]
    if lanes <= count:
        return vectors
    return [shuffle(v, v, tuple(range(start, start + side))) for start in range(0, lanes, side) for v in vectors]


def _sorted_blocks(vectors: list[UOp], side: int, block: int) -> list[UOp]:
    """Squares of blocks, `side` lanes of each vector, transposed: step d sorts two vectors whose numbers differ in bit
    d into their even blocks and their odd ones."""
    width, step = vectors[0].dtype.lanes, 1
    lanes = [own + start + n for start in range(0, width, side) for own in (0, width) for n in range(side)]
    picks = [tuple(n for n in lanes if n // block % 2 == odd) for odd in (0, 1)]
    while step < len(vectors):
        for n in (n for n in range(len(vectors)) if not n & step):
            a, b = vectors[n], vectors[n + step]
            vectors[n], vectors[n + step] = (UOp(Ops.SHUFFLE, a.dtype, (a, b), half) for half in picks)
        step *= 2
    return vectors
