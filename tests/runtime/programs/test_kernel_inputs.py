"""Random inputs of a kernel: each buffer that it reads, indices in range."""

from __future__ import annotations

import numpy as np

from kernmill import Tensor
from kernmill.ir import Kernel
from kernmill.runtime import later, recording_profile


def kernel_of(result: Tensor) -> Kernel:
    with recording_profile() as found:
        result.realize()
    return max((kernel for ran in found.ran.values() for kernel in ran.kernels), key=lambda k: len(k.buffers))


def test_indices_are_in_range() -> None:
    rows = Tensor(np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32), device="LLVM")
    found = later.kernel_inputs.random_inputs(kernel_of(rows[Tensor(np.arange(50) % 7, device="LLVM")]))
    indices = [values for values in found.values() if values.dtype.kind == "i"]
    assert len(found) == 2
    assert all(values.min() >= 0 and values.max() < 7 for values in indices)


def test_values_have_the_dtypes_of_the_buffers() -> None:
    x = Tensor(np.ones((5, 9), np.float32), device="LLVM").realize()
    kernel = kernel_of((x > 0.25).sum(1))
    for param in later.kernel_inputs.params_of(kernel):
        values = later.kernel_inputs.random_inputs(kernel).get(param.arg[0])
        assert values is None or values.shape == (param.arg[1],)
