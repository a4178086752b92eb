"""Placement: the least predicted time, pins and refusals kept, each value copied once to a device."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from kernmill.compiler import PlacementChoice, choose_devices, find_units, place, total_ns
from kernmill.ir import (
    CompileError,
    DeviceSpec,
    DeviceTable,
    DType,
    Link,
    Op,
    Ops,
    UOp,
    const,
    dtypes,
    elementwise,
    expand,
    reduce_axes,
    reshape,
)

NAMES = ("A", "B", "C")


def leaf(slot: int, *shape: int) -> UOp:
    return reshape(UOp(Ops.PARAM, dtypes.float32, (), (slot, math.prod(shape))), shape)


def product(x: UOp, w: UOp) -> UOp:
    """x @ w of matrices."""
    (rows, inner), (_, columns) = x.shape, w.shape
    shape = (rows, inner, columns)
    a = expand(reshape(x, (rows, inner, 1)), shape)
    b = expand(reshape(w, (1, inner, columns)), shape)
    return reshape(reduce_axes(elementwise(Ops.MUL, a, b), Ops.ADD, (1,)), (rows, columns))


def table(names: Sequence[str], draw: random.Random | None = None) -> DeviceTable:
    """Devices with equal rates, or with random ones."""
    specs, links = [], {}
    for name in names:
        rates = [10 ** draw.uniform(-1, 2) for _ in range(3)] if draw else [10.0, 100.0, 10.0]
        launch_ns = draw.choice([100.0, 5_000.0]) if draw else 1_000.0
        next_ns = launch_ns / draw.choice([1, 4]) if draw else launch_ns
        specs.append(DeviceSpec(name, next_launch_ns=next_ns).with_rates([launch_ns, *rates]))
    for pair in itertools.permutations(names, 2):
        links[pair] = (
            Link(draw.choice([10.0, 1_000.0, 20_000.0]), 10 ** draw.uniform(-2, 1)) if draw else Link(4_000.0, 1.0)
        )
    return DeviceTable(tuple(specs), links)


def program(draw: random.Random, leaves: int, steps: int) -> tuple[list[UOp], list[str]]:
    """Random products, additions and reductions of square matrices."""
    side = draw.choice([4, 16, 64])
    nodes = [leaf(slot, side, side) for slot in range(leaves)]
    for _ in range(steps):
        a, b = draw.choice(nodes), draw.choice(nodes)
        kind = draw.randint(0, 3)
        if kind == 0:
            nodes.append(product(a, b))
        elif kind == 1:
            nodes.append(elementwise(Ops.ADD, a, b))
        elif kind == 2:
            nodes.append(elementwise(Ops.EXP, a))
        else:
            nodes.append(expand(reduce_axes(a, Ops.MAX, (0,)), a.shape).alu(Ops.SUB, b))
    return nodes[-2:], [draw.choice(NAMES[:2]) for _ in range(leaves)]


def refusing_exp(why: str) -> dict[tuple[Op, tuple[DType, ...]], str]:
    return {(Ops.EXP, (dtypes.float32,)): why}


def least(choice: PlacementChoice) -> float:
    """The least time of all placements, tried one by one."""
    options = [list(costs) for costs in choice.cost]
    return min(total_ns(choice, device) for device in itertools.product(*options))


@pytest.mark.parametrize("seed", range(60))
def test_two_devices_are_placed_as_well_as_can_be(seed: int) -> None:
    draw = random.Random(seed)
    roots, devices = program(draw, 3, draw.randint(2, 9))
    choice = PlacementChoice(*find_units(roots, devices)[:2], table(NAMES[:2], draw), {})
    choose_devices(choice)
    assert total_ns(choice, choice.device) == pytest.approx(least(choice), rel=1e-9)


def test_three_devices_are_placed_nearly_as_well_as_can_be() -> None:
    ratios = []
    for seed in range(40):
        draw = random.Random(1000 + seed)
        roots, devices = program(draw, 3, draw.randint(2, 6))
        choice = PlacementChoice(*find_units(roots, devices)[:2], table(NAMES, draw), {})
        choose_devices(choice)
        ratios.append(total_ns(choice, choice.device) / least(choice))
    assert max(ratios) <= 1.05


@pytest.mark.parametrize("seed", range(20))
def test_copies_come_once_and_nodes_read_their_own_device(seed: int) -> None:
    draw = random.Random(seed)
    roots, devices = program(draw, 3, 9)
    placed = place(roots, devices, table(NAMES, draw), {})
    order = UOp(Ops.SINK, dtypes.void, tuple(placed.roots)).toposort()[:-1]
    where: dict[UOp, str | None] = {}
    copies: Counter[tuple[UOp, str]] = Counter()
    for node in order:
        if node.op is Ops.PARAM:
            where[node] = devices[node.arg[0]]
        elif node.op is Ops.COPY:
            assert where[node.src[0]] not in (None, node.arg)
            copies[node.src[0], node.arg] += 1
            where[node] = node.arg
        else:
            found = {where[s] for s in node.src} - {None}
            assert len(found) <= 1
            where[node] = next(iter(found), None)
    assert not copies or max(copies.values()) == 1


def test_a_split_for_one_kernel_has_to_gain_more_than_its_start() -> None:
    x, w, v = leaf(0, 1, 64), leaf(1, 64, 64), leaf(2, 64, 64)
    own = table(NAMES[:2])
    root = product(product(x, w), v)  # w is on B: its copy takes 12 us longer than those of x and x @ w
    for start_ns, expected in ((1_000.0, {"A", "B"}), (20_000.0, {"A"})):
        specs = [spec._replace(launch_ns=1_000.0 + start_ns, next_launch_ns=1_000.0) for spec in own.specs]
        placed = place([root], ["A", "B", "A"], own._replace(specs=tuple(specs)), {}).placement
        assert placed is not None
        assert {unit.device for unit in placed().units} == expected


def test_a_copy_is_made_of_the_smallest_view() -> None:
    x, y = leaf(0, 1, 64), leaf(1, 64, 64)
    (root,) = place([elementwise(Ops.ADD, x, y)], ["A", "B"], table(NAMES[:2]), {}).roots
    (copy,) = [node for node in root.toposort() if node.op is Ops.COPY]
    assert copy.shape in ((1, 64), (64,))
    assert copy.arg == "B"


def test_a_copy_of_every_second_element_has_only_these() -> None:
    x, y = leaf(0, 64), leaf(1, 32, 4)
    half = expand(reshape(UOp(Ops.STRIDE, dtypes.float32, (x,), ((2, 32),)), (32, 1)), (32, 4))
    (root,) = place([elementwise(Ops.ADD, half, y)], ["A", "B"], table(NAMES[:2]), {}).roots
    (copy,) = [node for node in root.toposort() if node.op is Ops.COPY]
    assert math.prod(copy.shape) == 32


def test_what_only_a_copy_reads_is_computed_on_its_device() -> None:
    x = leaf(0, 8, 8)
    wanted = UOp(Ops.COPY, dtypes.float32, (reshape(elementwise(Ops.MUL, x, x), (64,)),), "B")
    (root,) = place([wanted], ["A"], table(NAMES[:2]), {}).roots
    (copy,) = [node for node in root.toposort() if node.op is Ops.COPY]
    assert (copy.arg, copy.src[0].op, root.src[0].op) == ("B", Ops.PARAM, Ops.MUL)


def test_constants_are_made_where_they_are_read() -> None:
    x = leaf(0, 8, 8)
    mask = expand(reshape(const(dtypes.float32, 3.0), (1, 1)), (8, 8))
    (root,) = place([elementwise(Ops.MUL, x, mask)], ["B"], table(NAMES[:2]), {}).roots
    assert not [node for node in root.toposort() if node.op is Ops.COPY]


def test_what_a_device_refuses_is_elsewhere_and_says_why() -> None:
    x = leaf(0, 64, 64)
    root = product(elementwise(Ops.EXP, product(x, x)), x)
    devices = table(NAMES[:2])
    slow = devices.specs[1]._replace(ops_per_ns=0.01, products_per_ns=0.1, bytes_per_ns=0.1)
    refusing = devices.specs[0]._replace(refused=refusing_exp("EXP of float32"))
    placed = place([root], ["A"], DeviceTable((refusing, slow), devices.links), {})
    assert placed.placement is not None
    by_reason = {unit.reason: unit.device for unit in placed.placement().units}
    assert by_reason["A cannot: EXP of float32"] == "B"
    assert "A" in by_reason.values()


def test_what_no_device_computes_is_an_error() -> None:
    root = elementwise(Ops.EXP, leaf(0, 4, 4))
    devices = table(NAMES[:2])
    refused = refusing_exp("it has no EXP")
    specs = tuple(spec._replace(refused=refused) for spec in devices.specs)
    with pytest.raises(CompileError) as caught:
        place([root], ["A"], DeviceTable(specs, devices.links), {})
    assert "exp of float32: no device of DEVICE=A,B computes it (A: it has no EXP; B: it has no EXP)" in str(
        caught.value
    )


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_the_predicted_time(seed: int) -> None:
    draw = random.Random(seed)
    roots, devices = program(draw, 3, 8)
    own = table(NAMES[:2], draw)

    def time_on(changed: DeviceTable) -> float:
        placement = place(roots, devices, changed, {}).placement
        assert placement is not None
        return placement().predicted_ns

    now = time_on(own)
    faster = {pair: Link(link.latency_ns / 2, 2 * link.bytes_per_ns) for pair, link in own.links.items()}
    assert time_on(own._replace(links=faster)) <= now * (1 + 1e-9)
    quick = own.specs[0]._replace(ops_per_ns=100 * own.specs[0].ops_per_ns, launch_ns=1.0)
    assert time_on(own._replace(specs=(quick, *own.specs[1:]))) <= now * (1 + 1e-9)
    assert time_on(own) == now


def test_memory_and_writes_stay_where_they_are() -> None:
    x, y = leaf(0, 8, 8), leaf(1, 8, 8)
    written = UOp(Ops.ASSIGN, dtypes.float32, (x, elementwise(Ops.ADD, x, y)))
    placed = place([written], ["B", "A"], table(NAMES[:2]), {})
    assert placed.placement is not None
    (unit,) = [unit for unit in placed.placement().units if unit.op == "assign"]
    assert (unit.device, unit.reason) == ("B", "it writes to memory there")
    copied = UOp(Ops.COPY, dtypes.float32, (elementwise(Ops.EXP, x),), "A")
    placed = place([copied], ["B"], table(NAMES[:2]), {})
    assert placed.placement is not None
    assert ("copy", "A", "pinned by .to") in [unit[:1] + unit[2:4] for unit in placed.placement().units]


def test_a_price_of_memory_is_for_what_is_allocated() -> None:
    """Named regression: it was for all bytes that a unit reads. Where a device was nearly full, units left its weights,
    and copies of these filled the next one: a model over four small devices did not fit, but could have."""
    devices = table(NAMES[:2])
    x, w = leaf(0, 1, 64), leaf(1, 64, 64)
    placed = place([product(x, w)], ["B", "A"], devices, {"A": 1.0})
    assert placed.placement is not None
    assert [unit.device for unit in placed.placement().units if unit.op == "reduce"] == ["A"]
    assert devices._replace(price={"B": 2.0}).border_ns("A", "B", 1000, is_given=True) == 4_000 + 3 * 1000
