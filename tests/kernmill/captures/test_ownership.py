"""Tensors and their memory: what is owned, shared, renewed and realized."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, Variable, jit, no_grad
from kernmill.captures.ownership import (
    Tensors,
    buffer_of,
    make_ready,
    make_real,
    own,
    refresh,
    shared_memory,
    stored,
)
from kernmill.ir import IndexRangeError, UOp
from kernmill.runtime import Buffer, get_device, recording, take_over


def made(requires_grad: bool = False) -> Tensor:
    return Tensor(np.ones((2, 3), np.float32), requires_grad=requires_grad).realize()


def test_shared_memory_is_what_two_tensors_have_or_an_expression_reads() -> None:
    alone, twice, read = (Tensor([1.0, 2.0]).realize() for _ in range(3))
    other, expression = twice.detach(), read + 1.0
    shared = shared_memory()
    assert [id(buffer_of(tensor)) in shared for tensor in (alone, twice, other, read)] == [False, True, True, True]
    assert expression.tolist() == [2.0, 3.0]


def test_own_memory_stays_where_it_is() -> None:
    tensor = made()
    before = buffer_of(tensor)
    assert before is not None
    assert own(tensor, shared_memory()).address == before.address


def test_shared_memory_is_copied() -> None:
    tensor = made()
    for share in (tensor.clone, lambda: tensor * 2, tensor.numpy):
        other: Any = share()
        before = buffer_of(tensor)
        assert before is not None
        assert own(tensor, shared_memory()).address != before.address
        np.testing.assert_array_equal(tensor.numpy(), np.ones((2, 3)))
        assert other.shape == (2, 3)


def test_new_nodes_over_the_same_memory() -> None:
    tensor, leaf = made(), made(requires_grad=True)
    loss = (leaf * 3).sum()
    before = [(t.uop, buffer_of(t)) for t in (tensor, leaf)]
    refresh([tensor, leaf, tensor.clone()])
    for t, (uop, buffer) in zip((tensor, leaf), before, strict=True):
        assert t.uop is not uop
        assert buffer_of(t) is buffer
    loss.backward()  # what was computed from the leaf before still leads to it
    assert leaf.grad is not None
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full((2, 3), 3))


def test_make_real_takes_a_tensor_twice() -> None:
    tensor = made() + 1
    make_real([tensor, tensor])
    assert stored(tensor.uop) is not None


def test_assignments_to_constants_leave_no_memory_behind() -> None:
    """Such a node is part of a plan, which is kept: it kept the memory as well."""

    for rows in range(5021, 5024):  # as no other test has them, which are in this process too
        table = Tensor.ones(rows, 10).pad([(1, 0), (0, 0)])
        table[0] = 5
        assert (table + 1).sum().item() == rows * 20 + 60
        del table
    found = [x for x in gc.get_objects() if type(x) is Buffer and x.numel in range(50_220, 50_250)]
    assert not [x for x in found if x.owner is not None]  # a prepared plan has buffers without memory


def test_what_is_the_same_as_what_is_written_is_not_written_under_it() -> None:
    """contiguous() of memory is that memory, by another node than the one whose references are counted."""
    total = Tensor(np.zeros(4, np.float32)).realize()

    @jit
    def add(x: Tensor) -> None:
        total.assign(total + x)

    one = Tensor(np.ones(4, np.float32)).realize()
    for _ in range(5):
        add(one)
    before = total.contiguous().realize()
    for _ in range(3):
        add(one)
    assert (before.tolist(), total.tolist()) == ([5] * 4, [8] * 4)


def test_memory_of_a_result_that_was_written_in_place_is_not_used_again() -> None:
    """By another node than the one that the result had, and in a Buffer of its own since."""
    place = SimpleNamespace(total=Tensor(np.zeros(4, np.float32)).realize())
    twice = jit(lambda x: x * 2)

    @jit
    def add(x: Tensor) -> None:
        place.total.assign(place.total + x)

    one = Tensor(np.ones(4, np.float32)).realize()
    for _ in range(3):
        twice(one)
        add(one)
    place.total = twice(one).contiguous().realize()
    for _ in range(3):
        add(one)
    for _ in range(6):
        twice(one)
    assert place.total.tolist() == [5] * 4


@pytest.mark.parametrize("is_leaf", [False, True])
def test_what_another_capture_was_given_is_not_written_under_it(is_leaf: bool) -> None:
    """Its capture gave the copy a node of its own, so that nobody else seemed to see the memory of the one written."""
    total = Tensor(np.zeros(4, np.float32), requires_grad=is_leaf).realize()

    @jit
    def add(x: Tensor) -> None:
        total.assign(total.detach() + x)
        total.realize()

    one = Tensor(np.ones(4, np.float32)).realize()
    for _ in range(5):
        add(one)
    before = total.clone().detach()
    other = jit(lambda x: x + 1)
    for _ in range(3):
        other(before)
    add(one)
    assert (before.tolist(), total.tolist()) == ([5] * 4, [6] * 4)


def test_a_copy_of_a_leaf_that_a_capture_met_is_another_leaf() -> None:
    """Both had one node, as they share the memory until one of them is assigned: the first was no leaf any more."""
    weight = Tensor(np.ones(4, np.float32), requires_grad=True).realize()
    step = jit(lambda x: weight.assign(weight.detach() + x))
    one = Tensor(np.ones(4, np.float32)).realize()
    for _ in range(4):
        step(one)
        copies = [copy.deepcopy(weight), copy.copy(weight)]
        for leaf in (weight, *copies):
            assert leaf._is_leaf()
            (leaf * 3).sum().backward()
            assert leaf.grad is not None
            assert leaf.grad.tolist() == [3] * 4
            leaf.grad = None


def test_a_leaf_that_replaces_another_stays_one() -> None:
    """`hold` gave both the same node."""
    target, online = made(requires_grad=True), made(requires_grad=True)

    @jit
    def sync(x: Tensor) -> None:
        online.assign(online.detach() + x)
        target.replace(online)

    for _ in range(5):
        sync(made())
        assert target._is_leaf()
        assert online._is_leaf()
        assert target.tolist() == online.tolist()


def test_what_cannot_be_computed_is_left() -> None:
    places, table, good = Tensor([0, 9]).realize(), made(), made() + 1
    bad = table[places]
    make_ready([bad, good])
    assert good.is_realized
    with pytest.raises(IndexRangeError):
        bad.numpy()


def test_memory_may_be_taken_over_while_it_is_asked_whose_values_these_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = made(), made()
    middle = theirs + 1.0
    node, late, mine, toposort = middle.uop, middle * 2.0, ours * 2.0, UOp.toposort
    middle.realize()

    def overtaken(root: UOp, stop: Any = None) -> list[UOp]:
        found = toposort(root, stop)
        if root is late.uop:
            take_over(node)  # by an assignment of another thread
        return found

    monkeypatch.setattr(UOp, "toposort", overtaken)
    known = Tensors([ours], [], [late, mine])
    with recording() as recorded:
        assert known.coming_from([late, mine], recorded) == [mine]


@pytest.mark.parametrize("is_held", [False, True], ids=["dropped", "held by the user"])
def test_a_capture_frees_the_gradients_that_the_step_drops(is_held: bool) -> None:
    """Two sets of gradients made a GPT's second call the one with the largest peak."""
    w = Tensor(np.ones((64, 64), np.float32)).requires_grad_()

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        (w * x).square().sum().backward()
        return x + 1

    step(Tensor(np.full(64, 2, np.float32)))
    held = [w.grad] if is_held else []
    allocator = get_device().allocator
    before, _ = allocator.held_bytes()
    for value in (3, 4):  # a capture, and a replay
        step(Tensor(np.full(64, value, np.float32)))
        assert w.grad is not None
        assert w.grad.tolist() == [[2.0 * value * value] * 64] * 64
        after, _ = allocator.held_bytes()
        assert (after - before >= 64 * 64 * 4) == is_held
    assert [gradient.tolist() for gradient in held if gradient is not None] == [[[8.0] * 64] * 64] * is_held


def test_a_captured_step_returns_the_gradient_that_it_replaces() -> None:
    """The memory of the last gradient was written again, so the result had the values of the new one; when a replay
    freed it first, the result was on a device 'NOWHERE'."""
    w = Tensor(np.ones(4, np.float32)).requires_grad_()

    @jit
    def step(x: Tensor) -> tuple[Tensor | None, Tensor]:
        old = w.grad
        w.grad = None
        (w * x).square().sum().backward()
        return old, x + 1

    returned = [step(Tensor(np.full(4, value, np.float32)))[0] for value in range(2, 8)]
    assert [old.tolist()[0] for old in returned if old is not None] == [2.0 * v * v for v in range(2, 7)]
    assert w.grad is not None
    assert w.grad.tolist() == [98.0] * 4


def test_another_thread_finds_no_gradient_that_a_replay_is_about_to_free(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Tensor(np.ones(4, np.float32)).requires_grad_()
    found: list[Tensor | None] = []

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        (w * x).square().sum().backward()
        return x + 1

    def asked() -> set[int]:
        found.append(w.grad)  # as another thread would
        return shared_memory()

    for value in (2, 3):
        step(Tensor(np.full(4, value, np.float32)))
    monkeypatch.setattr("kernmill.captures.ownership.shared_memory", asked)
    step(Tensor(np.full(4, 4, np.float32)))
    assert found == [None]
    assert w.grad is not None
    assert w.grad.tolist() == [32.0] * 4


def _dead(x: Tensor) -> tuple[Tensor, ...]:
    shown = (x * 2).reshape(2, 2)
    return shown[0], shown, shown.T


VIEWS: dict[str, Callable[[SimpleNamespace, Tensor], tuple[Tensor, ...]]] = {
    "every second": lambda s, x: (s.a[::2], s.a),
    "reshaped": lambda s, x: (s.a.reshape(2, 2), s.a),
    "a part, transposed": lambda s, x: (s.a.reshape(2, 2).T[0], s.a),
    "detached": lambda s, x: (s.a.detach(), s.a),
    "of an argument": lambda s, x: (x[1:], x),
    "of a view of an argument": lambda s, x: (x[1:][::-1], x[1:], x),
    "of another result": lambda s, x: (lambda y: (y[1:], y))(x * 2),
    "of each other": lambda s, x: _dead(x),
    "at a location": lambda s, x: (setattr(s, "b", s.a[1:]), s.b, s.a)[1:],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_results_that_are_views_are_views_in_replays_too(name: str, is_replaced: bool) -> None:
    """The first two calls gave views, and replays copies: a write to either was not seen in the other."""

    def lived(wrap: Callable[[Any], Any]) -> list[Any]:
        state = SimpleNamespace(a=Tensor.zeros(4).contiguous().realize(), b=None)

        def step(x: Tensor) -> tuple[Tensor, ...]:
            if is_replaced:
                state.a = state.a * 2 + x
            else:
                state.a.assign(state.a * 2 + x)
            return VIEWS[name](state, x)

        call, seen = wrap(step), []
        for number in range(6):
            shown = call(Tensor(np.arange(4, dtype=np.float32) + number))
            shown[0][0] = 100.0 + number
            seen.append([t.tolist() for t in (*shown, state.a)])
            shown[-1][0:2] = 7.0
            seen.append([t.tolist() for t in (*shown, state.a)])
            del shown
            state.b = None
        return seen

    assert lived(jit) == lived(lambda function: function)


def test_a_view_at_a_symbolic_offset_is_at_that_of_its_call() -> None:
    state, place = Tensor.zeros(6).contiguous().realize(), Variable("n", 0, 3)

    @jit
    def part(n: Any) -> Tensor:
        return state[n : n + 2]

    for turn, n in enumerate((0, 3, 1, 3, 2)):
        shown = part(place.bind(n))
        shown[1] = turn + 1.0
        assert state[n + 1].item() == turn + 1
        state[n] = -1.0
        assert shown.tolist() == [-1, turn + 1]


def test_a_result_that_shows_a_leaf_is_constant_in_each_call() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    call = jit(lambda: w[1:])
    for number in range(4):
        shown = call()
        with no_grad():
            w.assign(w + 1)
        assert not shown.requires_grad
        assert shown.tolist() == [number + 3, number + 4]
