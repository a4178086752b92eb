"""Graphs over placeholders: other nodes for them, batches, and gradients that nodes define themselves."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from kernmill import KernmillError, Tensor
from kernmill.functional.custom import custom_gradient
from kernmill.functional.rewriting import Rewriter, placeholder
from kernmill.ir import dtypes


def test_other_values_for_a_placeholder() -> None:
    x = placeholder(dtypes.float32, (3,), "LLVM", "it has no values")
    graph = (Tensor._make(x) * 2 + 1).uop
    with pytest.raises(KernmillError, match="it has no values"):
        Tensor._make(graph).numpy()
    again = Rewriter({x: Tensor([1.0, 2.0, 3.0]).uop})
    assert Tensor._make(again(graph)).tolist() == [3, 5, 7]
    other = Tensor([1.0]).uop
    assert again(other) is other
    assert (again.depends(graph), again.depends(other)) == (True, False)


def test_a_batch_for_a_placeholder() -> None:
    x = placeholder(dtypes.float32, (3,), "LLVM")
    graph = (Tensor._make(x).flip(0).sum() * Tensor._make(x)).uop
    batch = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    found = Tensor._make(Rewriter({x: batch.uop}, 2)(graph))
    np.testing.assert_array_equal(found.numpy(), batch.numpy() * batch.numpy().sum(1, keepdims=True))


def test_rules_of_gradients_are_released_with_their_nodes() -> None:
    x = Tensor([1.0, 2.0])
    double = custom_gradient(lambda x: (x * 2, lambda g: g * 2))
    y = double(double(x))
    node = weakref.ref(y.uop)
    assert y.sum().gradient(x)[0].tolist() == [4, 4]
    del y
    assert node() is None
