"""A kernel as text and back: the same nodes, buffers by slot."""

from __future__ import annotations

import pytest

from kernmill.runtime import kernel_text
from tests.compiler.kernels import data, kernels, layer_norm, matmul, scheduled


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Nothing runs."""


def test_text_parses_back_to_the_same_kernel() -> None:
    graphs = scheduled(matmul(data(0, 8, 6), data(1, 6, 4)), layer_norm(data(2, 4, 16)))
    for kernel in kernels(graphs):
        read = kernel_text.kernel_from_text(kernel_text.kernel_to_text(kernel), "LLVM")
        assert read.ast is kernel.ast
        assert read.ast.key == kernel.ast.key
        assert read.buffers == tuple(range(len(kernel.buffers)))
        assert [kernel.buffers[slot] for slot in read.outputs] == list(kernel.outputs)
