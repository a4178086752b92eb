"""Every law of ir/algebra: it fires, it is true, it keeps dtype and shape, and it never makes a graph dearer.

`EXAMPLES` names every rule and says how to draw an expression that it matches. Leaves are arrays of all combinations
of small and extreme values of their dtype, so one evaluation of both sides exhausts the draw; a failure prints the
first combination that tells them apart. A rule without an example fails the gate at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from kernmill.ir import ALGEBRA, DType, Op, Ops, Rule, RuleSet, UOp, const, dtypes, evaluate, make_range, print_uops
from kernmill.ir import AxisKind as Kind

DRAWS = 120
UINTS = (dtypes.uint8, dtypes.uint32, dtypes.uint64)
INTS = (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64)
FLOATS = (dtypes.float16, dtypes.float32, dtypes.float64)
EXACT = (*INTS, dtypes.bool, dtypes.index)
DATA = (*INTS, *FLOATS, dtypes.bool)
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-45, -1e-45, 6e-8, 65504.0, 1e30, np.inf, -np.inf, np.nan)

Draw = Callable[[Random], UOp]
RULES = {rule.name: rule for rule in ALGEBRA}


# --- leaves and the values they take ---------------------------------------------------------------------------------
def leaf(name: str, dtype: DType, low: int | None = None, high: int | None = None) -> UOp:
    if dtype is dtypes.index:
        low, high = -9 if low is None else low, 9 if high is None else high
    return UOp(Ops.VARIABLE, dtype, (), (name, dtype.min if low is None else low, dtype.max if high is None else high))


def values_of(node: UOp) -> np.ndarray:
    """The values a leaf is tried with."""
    dtype = node.dtype
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return np.array(EDGES).astype(dtype.name)
    low, high = (int(b) for b in node.bounds)
    if high - low < 24:
        return np.arange(low, high + 1)
    near = [v for v in (low, low + 1, -9, -3, -2, -1, 0, 1, 2, 3, 7, 8, 9, high - 1, high) if low <= v <= high]
    return np.array(sorted(set(near)), dtype.name if dtype is not dtypes.index else "int64")


def grid(*roots: UOp) -> dict[UOp, np.ndarray]:
    """Each leaf below the roots as the array of its values in all combinations."""
    leaves = [u for u in roots[0].toposort() if u.op is Ops.VARIABLE or u.op is Ops.RANGE]
    if not leaves:
        return {}
    columns = np.meshgrid(*[values_of(u) for u in leaves], indexing="ij")
    table = {
        u: column.reshape(-1).astype(u.dtype.name if u.dtype is not dtypes.index else "int64")
        for u, column in zip(leaves, columns, strict=True)
    }
    runs = np.ones(columns[0].size, bool)  # a loop variable stays below its size
    for u in leaves:
        if u.op is Ops.RANGE:
            runs &= table[u] < evaluate(u.src[0], table)
    return {u: column[runs] for u, column in table.items()}


def check_equal(before: UOp, after: UOp) -> None:
    """Both sides give the same bits for every combination of leaf values."""
    assert after.dtype is before.dtype
    assert after.shape == before.shape
    if before.op is Ops.BROADCAST:  # the evaluator knows no vectors
        assert after is const(before.dtype, before.src[0].arg)
        return
    table = grid(before)
    data = {u: np.arange(8, dtype=np.float32) + 1 for u in before.toposort() if u.op is Ops.PARAM}
    want, got = (np.broadcast_arrays(evaluate(u, {**table, **data}), *table.values())[0] for u in (before, after))
    wrong = np.flatnonzero((want != got) & ~((want != want) & (got != got)))
    if want.dtype.kind == "f" and not len(wrong):
        wrong = np.flatnonzero((np.signbit(want) != np.signbit(got)) & (want == want))
    if len(wrong):
        at = wrong[0]
        shown = ", ".join(f"{u.arg[0]}={column[at]}" for u, column in table.items())
        pytest.fail(
            f"with {shown}: {want[at]} becomes {got[at]}\n{print_uops(before)}-- is not --\n{print_uops(after)}"
        )


_WEIGHT: dict[Op, int] = {
    **dict.fromkeys((Ops.CONST, Ops.VARIABLE, Ops.RANGE), 0),
    **dict.fromkeys((Ops.FLOORDIV, Ops.MOD, Ops.CDIV, Ops.CMOD, Ops.DIV, Ops.POW), 8),
}


def cost(root: UOp) -> int:
    """What a graph costs: one a node, more for divisions, nothing for data."""
    return sum(_WEIGHT.get(u.op, 1) for u in root.toposort())


# Rules that may cost more than what they replace, and why.
DEARER = {
    "floordiv_split": "x//c = q + r//c: r//c is often 0 in a later step, and q meets its like in other sums",
    "mod_split": "as floordiv_split: takes the multiples of c out of the remainder",
    "floordiv_common": "the divisor shrinks; the sum is written out term by term",
    "mod_common": "the divisor shrinks: the addition of what is left over pays for a remainder that is often in range",
    "mod_in_range": "a remainder becomes a subtraction of a constant",
    "add_collect": "a term that occurs in two places is written out with its coefficient in each",
    "sub_collect": "as add_collect; a subtraction is an addition and a factor -1, so that equal sums are one node",
    "neg_collect": "a factor for every term: the price of one normal form",
    "mul_collect": "a factor for every term: the price of one normal form",
    "add_div_mod": "a quotient and a remainder go; the sum inside is written out term by term",
    "floordiv_symbolic": "a division goes; the sum is written out term by term",
    "mod_symbolic": "a division goes; the sum is written out term by term",
    "lt_divide": "the sum is written out term by term with smaller factors",
    "lt_divide_left": "the sum is written out term by term with smaller factors",
}
ALLOWANCE = 8  # nodes that a rule of DEARER may add


# --- the examples ----------------------------------------------------------------------------------------------------
def two(rng: Random, pool: tuple[DType, ...] = DATA) -> tuple[UOp, UOp]:
    dtype = rng.choice(pool)
    return leaf("x", dtype), leaf("y", dtype)


def one(rng: Random, pool: tuple[DType, ...] = DATA) -> UOp:
    return two(rng, pool)[0]


def either(rng: Random, op: Op, a: UOp, b: UOp | float) -> UOp:
    """A commutative op, its sources in either order."""
    b = a.like(b)
    return a.alu(op, b) if rng.random() < 0.5 else b.alu(op, a)


def flag(name: str = "b") -> UOp:
    return leaf(name, dtypes.bool)


def number(rng: Random, dtype: DType) -> UOp:
    return const(dtype, rng.choice(EDGES) if dtype.is_float else rng.choice([0, 1, 2, 3, -1, 5, 127, 128]))


def places(rng: Random) -> list[UOp]:
    """Index leaves: loops and variables with bounds of either sign."""
    bounds = [(0, 1), (0, 3), (0, 6), (1, 4), (-5, 5), (-3, 0)]
    found = [leaf(f"v{n}", dtypes.index, *rng.choice(bounds)) for n in range(2)]
    return [*found, make_range("i", rng.choice([2, 3, 4, 8]), Kind.LOOP)]


def total(rng: Random, among: list[UOp] | None = None) -> UOp:
    """A random sum of multiples of places, now and then with a division inside."""
    among = among or places(rng)
    scale = rng.choice([1, 1, 2, 3, 4, 12])
    sum_ = None
    for atom in rng.sample(among, rng.randint(1, len(among))):
        if rng.random() < 0.2:
            atom = rng.choice([atom // rng.choice([2, 3]), atom % rng.choice([2, 3, 4])])
        term = atom * (rng.choice([1, 2, 3, -1, -2, 4, 6]) * scale) if rng.random() < 0.8 else atom
        sum_ = term if sum_ is None else (sum_ + term if rng.random() < 0.8 else sum_ - term)
    assert sum_ is not None
    return sum_ + rng.choice([0, 0, 1, scale, -scale, -1, 5, 12])


def digits(rng: Random) -> tuple[UOp, int]:
    """A number in whole blocks and a place in a block, mostly one that is inside of it; and as many blocks."""
    block = rng.choice([2, 4, 8])
    inner = leaf("j", dtypes.index, rng.choice([0, 0, 0, -1]), block - rng.choice([1, 1, 2, 0]))
    number = leaf("i", dtypes.index, rng.choice([0, -5]), 9) * (block * rng.choice([1, 1, 3]))
    return number + inner + rng.choice([0, 0, 0, 1, -1]), block * rng.randint(-3, 9)


def divisor(rng: Random) -> int:
    return rng.choice([1, 2, 3, 4, 6, 8, 12, 24, 100, 0, -1, -3, -8])


def load(gate: UOp) -> UOp:
    buffer = UOp(Ops.PARAM, dtypes.float32, (), (0, 8))
    return UOp(
        Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (buffer, leaf("i", dtypes.index, 0, 7), gate)),)
    )


def symbolic(rng: Random) -> tuple[UOp, UOp]:
    """A sum with multiples of a symbolic divisor, and the divisor."""
    size = leaf("n", dtypes.index, rng.choice([-1, 1, 4, 5]), 9)
    inner = (
        make_range("r", size, Kind.LOOP) if rng.random() < 0.3 else leaf("k", dtypes.index, 0, rng.choice([3, 4, 5]))
    )
    other = leaf("a", dtypes.index, -3, 3)
    sums = [
        inner,
        size,
        size * other,
        other * size + inner,
        size * other + other * size * 2 + inner,
        size * 2 + inner + 1,
    ]
    return rng.choice(sums), size


def casts(rng: Random) -> UOp:
    return one(rng, (*DATA, dtypes.bfloat16)).cast(rng.choice(DATA)).cast(rng.choice(DATA))


def recombination(rng: Random) -> UOp:
    x, c, d, k = total(rng), divisor(rng), rng.choice([2, 3, 5]), rng.choice([1, 2, -1])
    other = rng.choice([x // c, (x // c) % d, (x // (c + 1)), x // (c * 2)])
    if rng.random() < 0.3:
        x, other = x // 2, x // (2 * c)
    return either(rng, Ops.ADD, (x % c) * k + rng.choice(places(rng)), other * (c * k))


def same_size(dtype: DType) -> list[DType]:
    return [d for d in DATA if d.bits == dtype.bits and d is not dtype and not d.is_float] or [dtype]


def bitcasts(rng: Random) -> UOp:
    x = one(rng, INTS)
    middle = x.bitcast(rng.choice(same_size(x.dtype)))
    return UOp(Ops.BITCAST, rng.choice(same_size(x.dtype)), (middle,))


def divided_twice(rng: Random) -> UOp:
    return (total(rng) // divisor(rng)) // divisor(rng)


def bounded(rng: Random, op: Op) -> UOp:
    dtype = rng.choice((*INTS, dtypes.index))
    low = rng.choice([0, 2, 5])
    a, b = leaf("x", dtype, 0, 4), leaf("y", dtype, low, low + 3)
    return a.alu(op, b) if rng.random() < 0.5 else b.alu(op, a)


def known(rng: Random) -> UOp:
    a, b = leaf("x", dtypes.int32, 0, 4), leaf("y", dtypes.int32, 5, 9)
    return rng.choice(
        [a < b, b < a, a <= b, b <= a, a.eq(b), a.ne(b), (a // 5) * 3, (b - b) + leaf("z", dtypes.int8, 3, 3)]
    )


def nested_where(rng: Random) -> UOp:
    x, y = two(rng)
    return flag().where(flag("d").where(x, y), y)


def any_op(rng: Random) -> UOp:
    """An elementwise op on constants."""
    dtype = rng.choice(DATA)
    ops = [op for op in FOLDED if not dtype.is_float or op not in (Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR)]
    if dtype.is_bool:
        ops = [Ops.AND, Ops.OR, Ops.XOR, Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN]
    op = rng.choice(ops)
    return number(rng, dtype).alu(op, *[number(rng, dtype) for _ in range((op.arity or 1) - 1)])


FOLDED = [
    Ops.NEG,
    Ops.ADD,
    Ops.SUB,
    Ops.MUL,
    Ops.FLOORDIV,
    Ops.MAX,
    Ops.MIN,
    Ops.LT,
    Ops.LE,
    Ops.EQ,
    Ops.NE,
    Ops.AND,
    Ops.OR,
    Ops.XOR,
    Ops.SHL,
    Ops.SHR,
]


def node(op: Op, dtype: DType, *src: UOp) -> UOp:
    return UOp(op, dtype, src)


def ints(r: Random) -> UOp:
    return one(r, INTS)


def index_binary(op: Op) -> Draw:
    return lambda r: total(r).alu(op, total(r))


def masked_shifts(r: Random) -> UOp:
    """Every shift that a dtype has, and masks of any of its bits."""
    x = one(r, UINTS)
    bits = x.dtype.bits
    return (x >> r.randrange(bits) & r.randrange(1, 1 << bits)) << r.randrange(bits)


EXAMPLES: dict[str, Draw] = {
    # generic
    "fold_constant": any_op,
    "known_by_bounds": known,
    "add_zero": lambda r: either(r, Ops.ADD, one(r, EXACT), 0),
    "sub_zero": lambda r: one(r, INTS) - 0,
    "mul_one": lambda r: either(r, Ops.MUL, one(r), 1),
    "mul_zero": lambda r: either(r, Ops.MUL, one(r, EXACT), 0),
    "div_one": lambda r: one(r, FLOATS) / 1,
    "or_zero": lambda r: either(r, Ops.OR, one(r, EXACT), 0),
    "xor_zero": lambda r: either(r, Ops.XOR, one(r, EXACT), 0),
    "xor_self": lambda r: (x := one(r, EXACT)) ^ x,
    "sub_self": lambda r: (x := ints(r)) - x,
    "max_self": lambda r: (x := one(r)).alu(Ops.MAX, x),
    "min_self": lambda r: (x := one(r)).alu(Ops.MIN, x),
    "and_self": lambda r: (x := one(r, EXACT)) & x,
    "or_self": lambda r: (x := one(r, EXACT)) | x,
    "neg_neg": lambda r: (-one(r, (*INTS, *FLOATS))).alu(Ops.NEG),
    "abs_abs": lambda r: one(r, (*INTS, *FLOATS)).alu(Ops.ABS).alu(Ops.ABS),
    "shift_zero": lambda r: ints(r) << 0,
    "shift_right_zero": lambda r: ints(r) >> 0,
    "shl_of_masked_shr": masked_shifts,
    "pow_one": lambda r: one(r, (*INTS, *FLOATS)).alu(Ops.POW, 1),
    "detach_detach": lambda r: node(Ops.DETACH, dtypes.int32, node(Ops.DETACH, dtypes.int32, leaf("x", dtypes.int32))),
    "cast_same": lambda r: node(Ops.CAST, (x := one(r)).dtype, x),
    "bitcast_same": lambda r: node(Ops.BITCAST, (x := one(r)).dtype, x),
    "cast_cast": casts,
    "bitcast_bitcast": bitcasts,
    "cast_bool_ne_zero": lambda r: one(r, (*INTS, *FLOATS)).cast(dtypes.bool),
    "broadcast_const": lambda r: node(Ops.BROADCAST, (c := number(r, r.choice(DATA))).dtype.vec(4), c),
    # logic
    "and_true": lambda r: either(r, Ops.AND, flag(), 1),
    "and_false": lambda r: either(r, Ops.AND, flag(), 0),
    "or_true": lambda r: either(r, Ops.OR, flag(), 1),
    "not_not": lambda r: either(r, Ops.XOR, either(r, Ops.XOR, flag(), 1), 1),
    "add_bool_is_or": lambda r: flag() + flag("d"),
    "mul_bool_is_and": lambda r: flag() * flag("d"),
    "max_bool_is_or": lambda r: flag().alu(Ops.MAX, flag("d")),
    "min_bool_is_and": lambda r: flag().alu(Ops.MIN, flag("d")),
    "eq_self": lambda r: (x := one(r, EXACT)).eq(x),
    "ne_self": lambda r: (x := one(r, EXACT)).ne(x),
    "ne_false": lambda r: either(r, Ops.NE, flag(), 0),
    "eq_true": lambda r: either(r, Ops.EQ, flag(), 1),
    "lt_of_indices": lambda r: total(r).cast(dtypes.int64) < total(r).cast(dtypes.int64),
    "le_of_indices": lambda r: total(r).cast(dtypes.int64) <= total(r).cast(dtypes.int64),
    "lt_of_index": lambda r: total(r).cast(dtypes.int64) < divisor(r),
    "lt_of_index_left": lambda r: total(r).cast(dtypes.int64) > divisor(r),
    "lt_divide": lambda r: total(r) < divisor(r) if r.random() < 0.5 else operator.lt(*digits(r)),
    "lt_divide_left": lambda r: total(r) > divisor(r) if r.random() < 0.5 else (d := digits(r))[0] > d[1] - 1,
    "le_to_lt": lambda r: total(r) <= divisor(r),
    "le_to_lt_left": lambda r: total(r) >= divisor(r),
    "where_true": lambda r: const(dtypes.bool, r.random() < 0.5).where(*two(r)),
    "where_same_branches": lambda r: flag().where(x := one(r), x),
    "where_to_bool": lambda r: flag().where(const(dtypes.bool, 1), const(dtypes.bool, 0)),
    "where_same_condition_yes": lambda r: flag().where(flag().where(*(p := two(r))), p[r.randint(0, 1)]),
    "where_same_condition_no": lambda r: flag().where((p := two(r))[0], flag().where(*p)),
    "where_nested_and": nested_where,
    "load_nowhere": lambda r: load(const(dtypes.bool, False)),
    "load_anywhere": lambda r: load(const(dtypes.bool, True)),
    "where_gated_load": lambda r: flag().where(load(flag()), r.choice([0.0, -0.0])),  # -0.0 is no closed load
    "and_absorb": lambda r: either(r, Ops.AND, either(r, Ops.AND, flag(), flag("d")), flag()),
    # integer
    "add_div_mod": recombination,
    "add_collect": index_binary(Ops.ADD),
    "sub_collect": index_binary(Ops.SUB),
    "neg_collect": lambda r: -total(r),
    "mul_collect": lambda r: either(r, Ops.MUL, total(r), r.choice([2, -3, 4])),
    "max_by_bounds": lambda r: bounded(r, Ops.MAX),
    "min_by_bounds": lambda r: bounded(r, Ops.MIN),
    "cast_index_round_trip": lambda r: (
        leaf("x", dtypes.index, -9, r.choice([9, 127, 128])).cast(r.choice(INTS)).cast(dtypes.index)
    ),
    # divmod
    "floordiv_one": lambda r: one(r, (*INTS, dtypes.index)) // 1,
    "mod_one": lambda r: one(r, (*INTS, dtypes.index)) % 1,
    "floordiv_in_range": lambda r: total(r) // divisor(r),
    "mod_in_range": lambda r: total(r) % divisor(r),
    "floordiv_split": lambda r: total(r) // divisor(r),
    "mod_split": lambda r: total(r) % divisor(r),
    "floordiv_common": lambda r: total(r) // divisor(r),
    "mod_common": lambda r: total(r) % divisor(r),
    "floordiv_floordiv": divided_twice,
    "mod_mod": lambda r: (total(r) % divisor(r)) % divisor(r),
    "floordiv_of_mod": lambda r: (total(r) % divisor(r)) // divisor(r),
    "floordiv_symbolic": lambda r: (p := symbolic(r))[0] // p[1],
    "mod_symbolic": lambda r: (p := symbolic(r))[0] % p[1],
}


def fired(rule: Rule) -> list[tuple[UOp, UOp]]:
    """Different draws that the rule, alone, changes; with what they become."""
    alone, rng = RuleSet(rule.name, [rule], laws=True), Random(rule.name)
    draws = {EXAMPLES[rule.name](rng): None for _ in range(DRAWS)}
    before = rule.fired
    pairs = [(u, v) for u in draws if (v := alone.apply(u)) is not None]
    assert rule.fired == before + len(pairs)
    return pairs


@pytest.mark.parametrize("name", RULES)
def test_a_law_fires_and_is_true(name: str) -> None:
    pairs = fired(RULES[name])
    assert pairs, f"{name}: none of {DRAWS} draws of its example made it fire"
    for before, after in pairs:
        check_equal(before, after)


@pytest.mark.parametrize("name", RULES)
def test_a_law_does_not_make_the_graph_dearer(name: str) -> None:
    growth = max(cost(after) - cost(before) for before, after in fired(RULES[name]))
    assert growth <= (ALLOWANCE if name in DEARER else 0)


def test_every_law_has_an_example_and_every_exception_a_rule() -> None:
    assert set(EXAMPLES) == set(RULES)
    assert set(DEARER) <= set(RULES)


def test_a_law_keeps_the_shape_of_a_tensor() -> None:
    x = UOp(Ops.IOTA, dtypes.int64, (), 4)
    for expression in (x * 0, x - x, x ^ x, x.eq(x), const(dtypes.bool, True).where(const(dtypes.int64, 1), x)):
        assert ALGEBRA.apply(expression) is None
    assert ALGEBRA.apply(x * 1) is x
