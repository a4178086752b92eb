"""Random kernels for random targets: what the heuristic chooses fits, and every stage of lowering it is legal.

Nothing is run, so that graphs may be large; caches are from hundreds of bytes to what CPUs have. That small tensors
with such schedules come out right is what `TARGET=small pytest tests/fuzz tests/devices` tests.
"""

import itertools
import os
import random
from dataclasses import replace
from typing import Any

import pytest

from kernmill.ir import DType, Kernel, Ops, Target, UOp, dtypes
from tests.compiler.kernels import VECTORS, kernels, lowered, scheduled
from tests.compiler.tiles import UNITS
from tests.fuzz import test_graphs, test_rows

SEEDS = int(os.environ.get("FUZZ_SEEDS", "40"))
LEAVES = 64
MAKERS: list[type[test_graphs.Maker]] = [test_graphs.Maker, test_rows.RowMaker, test_rows.MaskMaker]


@pytest.fixture(autouse=True)
def _inputs_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the makers upload becomes an input of a graph."""
    slots = itertools.count()

    def upload(host: Any, dtype: DType, device: str) -> UOp:
        return UOp(Ops.PARAM, dtype, (), (next(slots), len(host)))

    for module in (test_graphs, test_rows):
        monkeypatch.setattr(module, "upload", upload)


DOTS = ((dtypes.uint8, dtypes.int8), (dtypes.bfloat16, dtypes.bfloat16))


def some_target(rng: random.Random) -> Target:
    """A CPU that could be."""
    vector_bytes = rng.choice([16, 32, 64, 64])
    return replace(
        VECTORS,
        vector_bytes=vector_bytes,
        vector_registers=32 if vector_bytes == 64 else 16,
        has_masks=vector_bytes >= 32,
        has_gathers=rng.random() < 0.5,
        has_fast_nontemporal_stores=rng.random() < 0.5,
        has_hardware_prefetch=rng.random() < 0.5,
        dots=frozenset(pair for pair in DOTS if rng.random() < 0.5),
        units=UNITS if vector_bytes == 64 and rng.random() < 0.3 else (),
        l1_bytes=rng.choice([256, 2 << 10, 32 << 10, 48 << 10]),
        l2_bytes=rng.choice([1 << 10, 8 << 10, 64 << 10, 1 << 20]),
    )


def check(seed: int, kind: type[test_graphs.Maker]) -> None:
    rng = random.Random(seed)
    maker = kind(seed, "LLVM", 10 ** rng.randint(3, 6))
    root = maker.grow()
    for _ in range(seed % 6):
        root = maker.grow()
    found: list[Kernel] = kernels(scheduled(root, devices=("LLVM",) * LEAVES))
    for kernel in found:
        lowered(kernel.ast, some_target(rng), is_checked=True)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_chosen_fits(seed: int, kind: type[test_graphs.Maker]) -> None:
    check(seed, kind)
