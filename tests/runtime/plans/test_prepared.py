"""Launches in one table: the same results as step by step, on other memory in each run."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import OutOfMemoryError, Tensor
from kernmill.runtime import collecting_kernels, plan


def run(a: Tensor, b: Tensor) -> list[float]:
    return ((a * 0.3 + b).cumsum(0) - b.flip(0)).softmax(0).tolist()  # type: ignore[no-any-return]


def test_prepared_launches_give_what_single_ones_give() -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        a, b = (Tensor(rng.standard_normal(40).astype(np.float32)).realize() for _ in range(2))
        got = run(a, b)
        with collecting_kernels():  # launches one by one
            assert run(a.clone(), b.clone()) == got


def test_results_of_two_runs_have_memory_of_their_own() -> None:
    x = Tensor([1.0, 2.0]).realize()
    one, other = (x + 1).realize(), (x * 1.0 + 1).realize()
    again = (Tensor([5.0, 6.0]) + 1).realize()
    assert (one.tolist(), other.tolist(), again.tolist()) == ([2, 3], [2, 3], [6, 7])


def test_a_plan_of_short_kernels_is_prepared() -> None:
    plan.plans.clear()
    (Tensor([1.0, 2.0]).realize() * 1.25).realize()
    (found,) = plan.plans.values()
    assert found.prepared[0] is not None


def test_a_plan_of_long_kernels_is_prepared_if_it_has_no_chains() -> None:
    """Plans above 100 us of work were not: each run made its table anew."""
    a = Tensor(np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)).realize()
    for _ in range(2):
        plan.plans.clear()
        got = (a @ a @ a.T).numpy()
    (found,) = plan.plans.values()
    (step,) = found.steps
    assert isinstance(step, list)
    assert sum(program.work_ns for _, program in step) > 100_000
    assert found.prepared[0] is not None
    np.testing.assert_allclose(got, a.numpy() @ a.numpy() @ a.numpy().T, rtol=1e-3, atol=1e-2)


def test_sizes_beyond_64_bits_are_refused_with_a_sentence() -> None:
    """The table of launches was made first: OverflowError, int too big to convert."""
    with pytest.raises(OutOfMemoryError, match=r"host memory: a buffer of .* exceeds the largest allocation"):
        Tensor.zeros(2**40, 2**40, device="LLVM").numpy()
