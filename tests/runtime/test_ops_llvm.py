"""LLVM: what its kernels say besides their results."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.ir import OutOfMemoryError
from kernmill.runtime import elf, host, plan


@pytest.mark.skipif(
    not elf.is_elf_host() or not host.this_host().has("avx512f"),
    reason="finds malloc by itself, or takes no heap for this",
)
def test_a_kernel_without_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What malloc gave was written to without a look at it."""
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(lambda _: None)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    a, b = (np.random.default_rng(n).normal(size=(1021, 1021)).astype(np.float32) for n in (0, 1))
    with Context(DEVICE="LLVM", CACHE="0"):
        x, y = Tensor(a).realize(), Tensor(b).realize()
        with monkeypatch.context() as patch:
            patch.setitem(elf.libc_externs(), "malloc", address)
            with pytest.raises(OutOfMemoryError, match=r"LLVM: no room for the [\d,]+ bytes that a kernel takes"):
                (x @ y).realize()
        np.testing.assert_allclose((x[:1000] @ y).numpy(), a[:1000] @ b, rtol=1e-3, atol=1e-3)
    plan.plans.clear()
