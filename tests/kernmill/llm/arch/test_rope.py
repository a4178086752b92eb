from __future__ import annotations

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.llm.arch.config import Rope
from kernmill.llm.arch.rope import rotate, tables


def rope(size: int = 4, scaling: str = "none", factor: float = 1.0) -> Rope:
    return Rope(size, 100.0, 0.0, scaling, factor, 32, 1.0, 32.0, 1.0)


def test_angles_grow_with_the_position_and_shrink_with_the_pair() -> None:
    cosine, sine = tables(rope(), 3)
    angles = np.array([[0, 0], [1, 0.1], [2, 0.2]])
    np.testing.assert_allclose(cosine.numpy(), np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sine.numpy(), np.sin(angles), atol=1e-7)


@pytest.mark.parametrize("by_halves", [True, False])
def test_pairs_turn_and_the_rest_stays(by_halves: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 6) + 1
    quarter = np.array([[0.0, 0.0], [np.pi / 2, np.pi / 2]], np.float32)
    result = rotate(Tensor(x), Tensor(np.cos(quarter)), Tensor(np.sin(quarter)), by_halves=by_halves).numpy()
    turned = [-9, -10, 7, 8, 11, 12] if by_halves else [-8, 7, -10, 9, 11, 12]
    np.testing.assert_allclose(result[0], [x[0, 0], turned], atol=1e-5)


def test_nothing_to_turn() -> None:
    x = Tensor.ones(1, 2, 3)
    assert rotate(x, *tables(rope(0), 2), by_halves=True) is x


def test_factors_that_cannot_divide() -> None:
    with pytest.raises(FormatError, match=r"^rope: the frequency factors of the file must all be positive"):
        tables(rope(), 2, Tensor([1.0, 0.0]))


def test_yarn_without_frequencies() -> None:
    flat = Rope(4, 1.0, 0.0, "yarn", 2.0, 32, 1.0, 32.0, 1.0)
    with pytest.raises(
        FormatError, match=r"^rope: yarn with base 1 and 32 rotations has no frequencies to interpolate\.$"
    ):
        tables(flat, 2)


def test_yarn_with_a_factor_below_1_leaves_the_vectors_as_they_are() -> None:
    """They shrank: the growth is by the logarithm of a context that became longer."""
    cosine, _ = tables(rope(scaling="yarn", factor=0.5), 1)
    assert cosine.numpy().tolist() == [[1.0, 1.0]]


def test_yarn_stretches_divided_frequencies() -> None:
    """Factors in the file switched the stretching off. Pair 1 is slow, and is divided by both."""
    cosine, _ = tables(rope(scaling="yarn", factor=4.0), 2, Tensor([2.0, 5.0]))
    growth = 1 + 0.1 * np.log(4)
    np.testing.assert_allclose(cosine.numpy()[1, 1], growth * np.cos(0.1 / 5 / 4), rtol=1e-6)
