"""Layers that are alike are built once, and mean what they meant when each was built."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, no_grad
from kernmill.llm.layer_templates import LayerTemplates
from kernmill.quant import QuantizedTensor


def matrix(seed: int, shape: tuple[int, ...] = (32, 32)) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def chain(weights: list[Any], states: list[Tensor], x: Tensor) -> tuple[Tensor, int]:
    """Layers that use a weight and add to a state; the result, and how many were built."""
    alike, built = LayerTemplates(), 0

    def layer(x: Tensor, weight: Any, state: Tensor) -> Tensor:
        nonlocal built
        built += 1
        state[1:2] = x[:1]
        return x + (weight.linear(x) if isinstance(weight, QuantizedTensor) else x @ weight).tanh() + state.sum(0)

    for weight, state in zip(weights, states, strict=True):
        x = alike.layer("layer", x, [weight], [state], partial(layer, x, weight, state))
    return x, built


@pytest.mark.parametrize("packed", [False, True])
def test_the_first_layer_stands_for_those_like_it(packed: bool) -> None:
    """Also where one between them is not: it has another type, or is a sum that is not computed yet."""
    plain = [matrix(n) for n in range(5)]
    weights: list[Any] = [QuantizedTensor.quantize(w, "Q8_0").interleaved() for w in plain] if packed else plain
    weights[2] = matrix(2) + 1
    states, others = ([matrix(n, (2, 32)) for n in range(9, 14)] for _ in range(2))
    x = matrix(5, (3, 32)).realize() + 1
    with no_grad():
        got, built = chain(weights, states, x)
        want = x
        for weight, state in zip(weights, others, strict=True):
            want, _ = chain([weight], [state], want)
    assert built == 2
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    for state, other in zip(states, others, strict=True):
        np.testing.assert_array_equal(state.numpy(), other.numpy())


def test_what_is_reached_in_another_way_is_built() -> None:
    """An x that is the reshape of something may be forgotten by what reshapes it; one memory may be two things."""
    alike, built = LayerTemplates(), 0

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        nonlocal built
        built += 1
        return (x @ weight).reshape(96).reshape(3, 32)

    x = (matrix(7, (96,)) + 1).reshape(3, 32)
    for weight in (matrix(0), matrix(1), matrix(2)):
        given = x
        x = alike.layer("layer", given, [weight], [], partial(layer, given, weight))
        np.testing.assert_allclose(x.numpy(), given.numpy() @ weight.numpy(), rtol=1e-5, atol=1e-5)
    assert built == 3
    for weight in (matrix(0), matrix(1)):
        x = matrix(8, (3, 32)) + 1
        alike.layer("other", x, [weight, weight], [], partial(layer, x, weight))
    assert built == 5
