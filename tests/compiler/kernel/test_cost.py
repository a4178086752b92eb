"""The estimate: what binds a kernel, on machines that are real and on made-up ones; every figure of a row counts."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

from kernmill.compiler import Cost, Work, choose, kernel_cost, parse_schedule, read_work, work_cost
from kernmill.ir import MACHINES, Level, Machine, Ops, Target, UOp, dtypes, shrink
from kernmill.runtime import Call, Program
from tests.compiler.corpus import TARGETS, kernels
from tests.compiler.kernels import VECTORS, data, lowered, matmul, only, total
from tests.compiler.tiles import I8, TILES, U8, product
from tests.conftest import Golden

ZEN4 = TARGETS["zen4"]
SHOWN = ("matmul_512 sum_512x512_k512", "softmax max_sum_4096x4096_k4096x4096", "transpose map_4096x4096",
         "sum sum_64_k64x4096", "cumsum sum_4096x16_k16 2")  # fmt: skip
MADE_UP: dict[str, Target] = {
    "zen4": ZEN4,
    "twice the lanes": replace(ZEN4, vector_bytes=128, most_lanes=128),
    "half the registers": replace(ZEN4, vector_registers=16),
    "slow gathers": replace(ZEN4, machine=replace(ZEN4.machine, lane_cycles=20.0)),
    "slow memory": replace(ZEN4, machine=replace(ZEN4.machine, levels=(
        *ZEN4.machine.levels[:2], ZEN4.machine.levels[2]._replace(bytes_per_cycle=1.0)))),
    "NEON": TARGETS["neon"],
    "GPU": TARGETS["cuda"],
}  # fmt: skip


@cache
def work(name: str, target: Target, schedule: str | None = None) -> Work:
    ast = kernels()[name]
    actions = choose(ast, target).actions if schedule is None else parse_schedule(schedule)
    return read_work(lowered(ast, target, actions), target)


def cost(root: UOp, schedule: str, target: Target = ZEN4) -> Cost:
    return kernel_cost(lowered(only(root), target, parse_schedule(schedule)), target)


def test_reasons_on_made_up_machines(golden: Golden) -> None:
    """The schedule of each kernel, and what binds it: both follow the row."""
    lines: list[str] = []
    for name in SHOWN:
        lines.append(name)
        for machine, target in MADE_UP.items():
            found = work_cost(work(name, target), target)
            actions = "; ".join(map(str, choose(kernels()[name], target).actions))
            lines.append(f"  {machine}: {found.why}\n    {actions}")
    assert golden == "\n".join(lines)


def test_a_tile_is_bound_by_arithmetic_and_one_sum_by_its_chain() -> None:
    root = matmul(data(0, 64, 512), data(1, 512, 64))
    tile = cost(root, "vectorize i1 16; unroll i1 4; unroll i0 4")
    assert tile.bound == "arithmetic"
    chain = cost(root, "vectorize i1 16")
    assert chain.bound == "the chain of sums"
    assert chain.total_ns > 2 * tile.total_ns


def test_registers_that_are_not_there() -> None:
    root = matmul(data(0, 96, 512), data(1, 512, 64))
    schedule = "vectorize i1 16; unroll i1 4; unroll i0 6"
    few = replace(ZEN4, vector_registers=16)
    assert cost(root, schedule, few).total_ns > 1.3 * cost(root, schedule).total_ns


def test_the_order_of_lines_counts() -> None:
    """Columns that are read one line at a time begin a sequence of lines in each row."""
    root = data(0, 4096, 4096) + 1.0
    root = total(data(0, 4096, 4096), 0)
    narrow, wide = cost(root, "vectorize i0 16"), cost(root, "vectorize i0 16; unroll i0 16")
    assert narrow.total_ns > 1.5 * wide.total_ns


def test_parts() -> None:
    found = cost(data(0, 4096, 4096) + 1.0, "vectorize i0 16")
    assert found.parts[0].name == found.bound == "data from memory"
    assert list(found.parts) == sorted(found.parts, key=lambda part: -part.time_ns)
    assert found.why.startswith("bound by data from memory: ")
    assert found.total_ns >= found.parts[0].time_ns
    assert kernel_cost([], VECTORS).bound == "the launch"


def test_a_symbolic_size_counts_at_its_greatest() -> None:
    size = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 4096))

    def taken(count: int | UOp) -> float:
        return kernel_cost(lowered(only(shrink(data(0, 4096), ((0, count),)) + 1.0), ZEN4), ZEN4).total_ns

    assert taken(64) < taken(4096) <= taken(size) < 4 * taken(4096)


# --- every figure counts ---------------------------------------------------------------------------------------------
MATMUL, MATMUL_LARGE, COPY = "matmul_256 sum_256x256_k256", "bf16_2048 sum_2048x2048_k2048", "bf16_512 map_512x512"
FIGURES: dict[str, str] = {  # a kernel of the corpus that the figure decides something of
    "clock_ghz": MATMUL, "issue": MATMUL, "fma": MATMUL, "vectors": MATMUL, "alu": COPY, "scalar": COPY,
    "shuffle": "rows_1 sum_4096_k4096", "load": MATMUL, "store": MATMUL, "divide": "quant_q8_0_1 map_128",
    "lane_cycles": "cumsum sum_4096x16_k16 2", "mask_cycles": "max_pool max_16x64x56x56_k2x2",
    "latency": "rows_1 sum_4096_k4096", "window": "int8_1024 sum_1024x1024_k1024", "spill_cycles": MATMUL,
    "loop_cycles": "conv_3x3 sum_16x64x56x56_k64x3x3", "body_limit": "mlp_step max_128_k10",
    "body_slowdown": "mlp_step sum_128_k10", "streams": "conv_stride_2 sum_16x128x28x28_k64x3x3",
    "stream_slowdown": "conv_3x3 map_16x56x56x64", "overlap": MATMUL, "fork_ns": MATMUL,
    "launch_ns": "mlp_step map_1 2",
    "0.size_bytes": "rms_norm sum_4096x4096_k4096", "0.bytes_per_cycle": MATMUL,
    "0.run_cycles": "mlp_step sum_128x512_k10", "1.size_bytes": COPY, "1.bytes_per_cycle": COPY,
    "1.run_cycles": "convnet_step sum_32_k128x10x10", "2.size_bytes": MATMUL_LARGE,
    "2.bytes_per_cycle": MATMUL_LARGE, "2.run_cycles": "conv_3x3 map_16x56x56x64",
    "units": "softmax max_sum_4096x4096_k4096x4096",
}  # fmt: skip
MANY_SUMS = "vectorize i1 16; unroll i1 6; unroll i0 8"


def decisions(found: Work, target: Target) -> object:
    """What the estimate decides: the order of reasons, and chunks for threads."""
    made = work_cost(found, target)
    call, fork_ns = Call(Program("", None, 1 << 10, made.total_ns), (), (), 1 << 10), target.machine.fork_ns
    return [part.name for part in made.parts], call.chunk(fork_ns, 3 * fork_ns, 1 << 10)


def doubled(machine: Machine, name: str) -> Machine:
    level, _, field = name.partition(".")
    if not field:
        return replace(machine, **{name: 2 * getattr(machine, name)})
    at = int(level)
    one = machine.levels[at]
    changed = one._replace(**{field: 2 * getattr(one, field)})
    return replace(machine, levels=(*machine.levels[:at], changed, *machine.levels[at + 1 :]))


@pytest.mark.parametrize("name", FIGURES)
def test_doubling_any_figure_changes_a_decision(name: str) -> None:
    """A figure that nobody reads is not in a row."""
    target = TARGETS["cuda"] if name == "units" else ZEN4
    found = work(FIGURES[name], target, MANY_SUMS if name == "spill_cycles" else None)
    assert decisions(found, target) != decisions(found, replace(target, machine=doubled(target.machine, name)))


def test_the_speed_of_a_matrix_unit_counts() -> None:
    ast = product((64, 64, 64), (U8, I8))
    found = read_work(lowered(ast, TILES, choose(ast, TILES).actions), TILES)
    assert sum(body.matrix for body in found.bodies) > 0
    assert decisions(found, TILES) != decisions(found, replace(TILES, machine=replace(TILES.machine, matrix=1.0)))


def test_every_figure_is_doubled() -> None:
    by_strategies = {"prefetch_bytes", "page_bytes"}  # tests/compiler/optimize/test_corpus.py
    named = {field.name for field in fields(Machine)} - {"name", "levels", "matrix", *by_strategies}
    assert {*FIGURES} == named | {f"{at}.{field}" for at in range(3) for field in Level._fields[1:]}


def test_machines_have_the_same_levels() -> None:
    assert all(row.levels[0].name == "L2" and row.levels[-1].name == "memory" for row in MACHINES.values())
