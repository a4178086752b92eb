from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, ShapeError, Tensor, cat, stack, where
from kernmill.arguments import is_foreign, is_whole, misfit, with_sentences
from kernmill.ir import no_collection
from kernmill.nn import Linear
from kernmill.nn.optim import clip_grad_norm


def example(x: Tensor, sizes: int | Sequence[int] | None = None, *others: Tensor, rate: float = 1.0) -> int:
    if rate == 0:
        raise ValueError("what the function itself cannot do")
    return len(sizes) + rate  # type: ignore[arg-type, return-value]


GOOD: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((Tensor([1]),), {}),
    ((Tensor([1]), 3), {}),
    ((Tensor([1]), np.int64(3)), {"rate": np.float32(2)}),
    ((Tensor([1]), [3, np.int8(4)]), {"rate": 3}),
    ((Tensor([1]), Tensor(3)), {"rate": np.array(2.0)}),
    ((Tensor([1]), (), Tensor([2]), Tensor([3])), {}),
]
BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((1,), {}, "example: x is 1, of type int. Give a Tensor; wrap data in Tensor(..)."),
    ((Tensor([1]), [1.5]), {}, "example: sizes is [1.5], of type list. "
                               "Give an integer or several integers or None."),
    ((Tensor([1]), 1, Tensor([1]), "b"), {}, "example: others is 'b', of type str. Give a Tensor."),
    ((Tensor([1]),), {"rate": "b"}, "example: rate is 'b', of type str. Give a number."),
    ((Tensor([1]), Tensor([1.5, 2.0])), {}, "example: sizes is data of shape (2,), of type Tensor. "
                                           "Give an integer or several integers or None."),
]  # fmt: skip


@pytest.mark.parametrize(("args", "named"), GOOD, ids=range(len(GOOD)))
def test_what_fits_is_not_blamed(args: Any, named: Any) -> None:
    assert misfit(example, args, named) is None


@pytest.mark.parametrize(("args", "named", "message"), BAD, ids=range(len(BAD)))
def test_the_first_that_does_not_fit_is_named(args: Any, named: Any, message: str) -> None:
    assert str(misfit(example, args, named)) == message


def test_only_failures_are_looked_at() -> None:
    guarded = with_sentences(example)
    assert guarded(Tensor([1]), [1, 2]) == 3
    assert guarded(3, [1, 2]) == 3  # type: ignore[arg-type]  # nothing asked for the Tensor
    with pytest.raises(DTypeError, match="sizes is 'ab'"):
        guarded(Tensor([1]), "ab", rate="c")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="itself") as caught:
        guarded(Tensor([1]), rate=0)
    assert is_foreign(caught.value, example)
    with pytest.raises(TypeError, match="missing"):
        guarded()  # type: ignore[call-arg]


def test_what_a_users_code_raises_is_passed_on() -> None:
    """A generator's own ValueError became `tensors is <generator object>`, without a word of where it came from."""

    def given() -> Iterator[Tensor]:
        yield Tensor([1])
        raise ValueError("what the user's code says")

    class Place:
        def __index__(self) -> int:
            raise ValueError("what the user's code says")

    place: Any = Place()
    calls: list[Callable[[], Any]] = [
        lambda: cat(given()), lambda: clip_grad_norm(given(), 1.0), lambda: Tensor([1]).sum(place)]  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="what the user's code says"):
            call()


def test_what_is_used_up_is_not_judged() -> None:
    assert cat(iter([Tensor([1]), Tensor([2])])).shape == stack(Tensor([i]) for i in range(2)).reshape(2).shape == (2,)
    with pytest.raises(ShapeError, match="cat: no tensors"):
        cat(iter([]))


FLAG: Any = True
FAILING: list[Callable[[Any], Any]] = [
    lambda x: x.gather(0, [0]), lambda x: where(FLAG, x, 1), lambda x: Linear(4, 3)([x])]  # fmt: skip


@pytest.mark.parametrize("call", FAILING, ids=range(len(FAILING)))
def test_a_sentence_keeps_no_arguments(call: Callable[[Any], Any]) -> None:
    """The frame that raised it held it, and it the frame: tensors stayed until the next collection."""
    x = Tensor([1.0])
    still = weakref.ref(x)
    with no_collection():
        try:
            call(x)
        except DTypeError:
            del x
        assert still() is None


def test_whole_numbers_are_also_numpys_and_no_bools() -> None:
    assert all(map(is_whole, (0, -3, np.int8(-3), np.prod((2, 3)))))
    assert not any(map(is_whole, (True, 1.0, "1", None, np.float32(1))))
    assert is_whole(np.uint8(2), 2)
    assert not is_whole(1, 2)
