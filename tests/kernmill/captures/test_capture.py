"""What captures do to tensors and their memory; what follows for the user is in test_jitted.py."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, Tensor, Variable, jit
from kernmill.captures import Jit
from kernmill.captures.ownership import buffer_of
from kernmill.nn import optim
from kernmill.quant import QuantizedTensor


def made(requires_grad: bool = False) -> Tensor:
    return Tensor(np.ones((2, 3), np.float32), requires_grad=requires_grad).realize()


@pytest.mark.parametrize("kind", [list, deque, UserList])
def test_what_is_assigned_in_a_container_is_assigned_by_replays(kind: Any) -> None:
    """Once lost: nobody read it between the calls, and the result does not use it."""
    box = kind([made()])

    @jit
    def step(x: Tensor) -> Tensor:
        box[0].assign(box[0] + x)
        return x * 2

    for _ in range(5):
        step(made())
    np.testing.assert_array_equal(box[0].numpy(), np.full((2, 3), 6, np.float32))


def test_a_deque_grows_in_replays() -> None:
    """Named regression: an IndexError in the replay, after the launch."""
    past: deque[Tensor] = deque([made()])

    @jit
    def step(x: Tensor, given: deque[Tensor]) -> deque[Tensor]:
        past.append(x * 2)
        given.appendleft(x * 3)
        return deque([x, past[0]], 2)

    for i in range(6):
        while len(past) > 1:
            past.pop()
        given = deque([made()], maxlen=None if i % 2 else 1)
        x = made() * i
        result = step(x, given)
        assert (len(past), len(given), result.maxlen) == (2, 2 if i % 2 else 1, 2)
        np.testing.assert_array_equal(past[1].numpy(), x.numpy() * 2)
        np.testing.assert_array_equal(given[0].numpy(), x.numpy() * 3)
        assert result[0] is x
    assert step.cache_info().captures == 2


@pytest.mark.parametrize("kind", [list, deque])
def test_what_is_exchanged_in_a_container_is_exchanged_by_replays(kind: Any) -> None:
    box = kind([made()])

    @jit
    def step(x: Tensor) -> Tensor:
        box[0] = box[0] + x
        return x * 2

    for _ in range(5):
        step(made())
    np.testing.assert_array_equal(box[0].numpy(), np.full((2, 3), 6, np.float32))


def test_checked_kernels_are_captured_too() -> None:
    """CHECK=1 ran them and recorded nothing: every replay gave the values of the capture."""
    with Context(CHECK=1):
        double = jit(lambda x: x * 2)
        for value in range(4):
            np.testing.assert_array_equal(double(Tensor([float(value)])).numpy(), [2.0 * value])


@pytest.mark.parametrize("make", [lambda t: UserList([t]), lambda t: UserDict({0: t}), lambda t: ChainMap({0: t})])
def test_a_tensor_that_is_exchanged_in_a_container_of_the_library(make: Callable[[Tensor], Any]) -> None:
    """They were not looked into: a replay left the tensor of the capture in its place, without a word."""
    box = make(Tensor([0.0, 1, 2]).realize())

    @jit
    def step(x: Tensor) -> Tensor:
        box[0] = box[0] + x
        result: Tensor = box[0] * 2
        return result

    for count in range(1, 6):
        np.testing.assert_array_equal(step(Tensor([1.0, 2, 3])).numpy(), 2 * (np.arange(3) + count * np.arange(1, 4)))
        np.testing.assert_array_equal(box[0].numpy(), np.arange(3) + count * np.arange(1, 4))


class Opaque:
    """Not looked into: it says that it is of the standard library."""

    __module__ = "collections"
    tensor: Tensor


def test_a_tensor_that_is_put_where_jit_does_not_look(caplog: pytest.LogCaptureFixture) -> None:
    box = Opaque()

    @jit
    def keep(x: Tensor) -> Tensor:
        box.tensor = x + 1
        return x * 2

    with caplog.at_level(logging.WARNING, logger="kernmill"):
        for value in range(3):
            keep(Tensor([1.0, value]))
    assert [r.getMessage() for r in caplog.records if "jit does not inspect" in r.getMessage()]


def put_in(d: dict[Any, Any], x: Tensor) -> Tensor:
    d["twice"] = x * 2
    return x + 1


def append(d: list[Any], x: Tensor) -> Tensor:
    d.append(x * 2)
    d.insert(0, [x + 1])
    d.append(x)
    return x + 1


def turn(d: list[Any], x: Tensor) -> int:
    d.append((d.pop(0), x - 1))
    d.reverse()
    return 3


def remove(d: dict[Any, Any], x: Tensor) -> Any:
    del d["a"]
    d["b"], d["c"] = d["c"], {"more": d["b"] + x}
    d["n"] = 5
    return d


def attributes(d: Any, x: Tensor) -> None:
    d.made = [x * 2]
    d.kept = (d, d.kept)


@dataclass
class Kept:
    kept: Any


def show(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value without tensors, to be compared."""
    if isinstance(value, Tensor):
        return value.numpy().tolist()
    if id(value) in inside:
        return inside.index(id(value))
    inside = (*inside, id(value))
    if isinstance(value, dict):
        return [(key, show(item, inside)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [show(item, inside) for item in value]
    return show(vars(value), inside) if hasattr(value, "__dict__") else value


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (put_in, dict), (append, list), (append, lambda: [made()]), (turn, lambda: [made(), 1, "a"]),
        (remove, lambda: {"a": made(), "b": made(), "c": [made()]}), (attributes, lambda: Kept(made())),
        (attributes, lambda: SimpleNamespace(kept=made())), (lambda d, x: put_in(d[0]["in"], x), lambda: ({"in": {}},)),
        (lambda d, x: [d[0].append(x), d[0], d], lambda: [[], []]), (lambda d, x: d.update({1: x}), lambda: {True: 1}),
    ],
)  # fmt: skip
def test_what_is_put_into_a_container_is_put_there_by_replays(function: Any, make: Any) -> None:
    """Named regression: a tensor put into a dict, a list or an attribute of an argument was that of the capture."""
    step = jit(function)
    for value in range(6):
        mine, theirs = make(), make()
        found, wanted = step(mine, made() * value), function(theirs, made() * value)
        assert show((found, mine)) == show((wanted, theirs))
        assert (found is mine) == (wanted is theirs)


def test_the_same_container_twice() -> None:
    """Named regression: with tensors in neither, two containers were taken for one."""
    step = jit(lambda a, b, x: (a.append(x), len(b))[1])
    for _ in range(4):
        one, two = [], []  # type: ignore[var-annotated]
        assert step(one, one, made()) == 1
        assert step(one := [], two, made()) == 0
        assert (len(one), len(two)) == (1, 0)


def test_one_and_true_are_other_keys() -> None:
    """Named regression: {1: x} and {True: x} shared a capture."""
    step = jit(lambda d: next(iter(d)))
    for _ in range(4):
        assert step({1: made()}) is not True
        assert step({True: made()}) is True


def test_arguments_are_not_kept_alive() -> None:
    """Named regression: on devices without a table of their own a capture held the last call's buffers."""
    step = jit(lambda x: x.sum())
    for value in range(5):
        x = made() * value
        x.realize()
        step(x)
        buffer = weakref.ref(buffer_of(x))
        del x
    assert buffer() is None


class Kept2:
    def __init__(self) -> None:
        self.x: Any = made()
        self.y: Any = None


def append_and_add(state: Any, a: Tensor) -> Tensor:
    state["list"].append(a * 2)
    state["dict"]["k"] = a + 1
    return a + 1


def pop(state: Any, a: Tensor) -> Tensor:
    result: Tensor = state["list"].pop() + state["dict"].pop("a") + a
    state["dict"]["z"], state["other"] = a * 3, [result]
    return result


def delete(state: Any, a: Tensor) -> Tensor:
    state["object"].y = state["object"].x * a
    del state["object"].x
    return a * 1


def in_tuple(state: Any, a: Tensor) -> int:
    state["pair"][0].append(a)
    state["pair"] = (state["pair"][0], [a * 2])
    return len(state["pair"][0])


@pytest.mark.parametrize("function", [append_and_add, pop, delete, in_tuple])
def test_state_that_grows_and_shrinks_and_is_put_back(function: Any) -> None:
    """Named regressions: a list that grew failed at the first replay, what was removed came to stay, and parts of
    places behind a removed one were mixed up."""

    def make(value: int) -> dict[str, Any]:
        kept = Kept2()
        kept.x = made() * value
        return {"list": [made() * value], "dict": {"a": made(), "b": made()}, "object": kept, "pair": ([], [])}

    mine: dict[str, Any] = {}
    step = jit(lambda a: function(mine, a))
    for value in range(6):
        theirs = make(value)
        mine.clear()
        mine.update(make(value))
        assert show(step(made() * value)) == show(function(theirs, made() * value))
        assert show(mine) == show(theirs)


def test_a_set_that_is_changed_in_place_is_noticed() -> None:
    """Named regression: sets were compared by identity."""
    known = {1, 2}
    step = jit(lambda a: a * len(known))
    for value in range(6):
        known.add(value)
        np.testing.assert_array_equal(step(made()).numpy(), made().numpy() * len(known))


def test_tensors_of_other_threads_are_no_escape(caplog: pytest.LogCaptureFixture) -> None:
    """Named regression: each tensor that another thread made during a capture was warned about."""
    begun, done = threading.Event(), threading.Event()
    kept: list[Tensor] = []

    def other() -> None:
        begun.wait(10)
        kept.extend([made(), made() + 1])
        done.set()

    @jit
    def step(x: Tensor) -> Tensor:
        begun.set()
        done.wait(10)
        return x + 1

    thread = threading.Thread(target=other)
    x = made()
    done.set()
    step(x)
    begun.clear()
    done.clear()
    thread.start()
    with caplog.at_level(logging.WARNING, "kernmill"):
        step(x)
    thread.join()
    assert (len(kept), caplog.text) == (2, "")


def test_the_setting_of_quantized_products_is_noticed() -> None:
    """Named regression: QUANT_ACT=int8 was answered with the capture of QUANT_ACT=float."""
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    weight = QuantizedTensor.quantize(Tensor(values), "Q8_0")
    weight.realize()  # else each way computes them in a kernel of its own
    work = jit(lambda x: weight.linear(x))
    x = Tensor(values[:3])
    for how in ("int8", "float", "int8", "float", "int8"):
        with Context(QUANT_ACT=how):
            np.testing.assert_array_equal(work(x).numpy(), weight.linear(x).numpy())


def test_equal_objects_are_told_apart() -> None:
    """Named regression: an argument that equals that of the capture by its class was answered with its values."""

    class Named:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 1

    work = jit(lambda x, named: x * named.rate)
    for rate in (1, 2, 3, 4):
        np.testing.assert_array_equal(work(made(), Named(rate)).numpy(), made().numpy() * rate)


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_as_it_was(is_enabled: bool, fails: bool) -> None:
    """The garbage of a captured function is the user's, and may be of any size."""
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(gc.isenabled())
        if fails and len(seen) > 1:
            raise ZeroDivisionError
        return x + 1

    captured = jit(function)
    try:
        if not is_enabled:
            gc.disable()
        captured(Tensor([1.0]))
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            captured(Tensor([2.0]))
        seen.append(gc.isenabled())
    finally:
        gc.enable()
    assert seen == [is_enabled] * 3


@pytest.mark.parametrize("order", ["fffff", "fgggff", "fggffff", "gggffff"])
def test_a_tensor_that_is_given_the_memory_it_shares_is_given_it_by_replays(order: str) -> None:
    """Captured while both shared their memory, it seemed to stay as it was."""

    def life(wrap: Callable[[Any], Any]) -> list[Any]:
        m = SimpleNamespace(b=Tensor([7.0] * 3).realize(), c=Tensor([5.0] * 3).realize())

        def give(x: Tensor) -> None:
            m.c.replace(m.b)
            m.b = x * 1

        def share(x: Tensor) -> Tensor:
            m.b = x * 2
            m.c = m.b.reshape(3, 1).clone().reshape(3)
            return x * 3

        calls, found = {"f": wrap(give), "g": wrap(share)}, []
        for number, name in enumerate(order):
            calls[name](Tensor(np.full(3, number, np.float32)).realize())
            found.append((m.b.tolist(), m.c.tolist()))
        return found

    assert life(jit) == life(lambda function: function)


def test_an_assignment_that_another_tensor_realized_keeps_its_value() -> None:
    """Its node was found computed by nobody, and what it read had been overwritten."""
    m = SimpleNamespace(c=Tensor(np.zeros((2, 3), np.float32)).realize())

    @jit
    def step(x: Tensor) -> Tensor:
        m.c[0] = x[0] * 2 + 1
        m.c.detach().realize()
        return x * 3

    for turn in range(5):
        step(m.c)
        assert m.c.tolist() == [[2 ** (turn + 1) - 1] * 3, [0] * 3]


def test_state_that_cannot_be_computed_stops_no_capture() -> None:
    """A step that failed left gradients that nobody can compute, and each later call said so, though it drops them."""
    weight = Tensor(np.ones((3, 4), np.float32), requires_grad=True).realize()
    optimizer = optim.SGD([weight], lr=0.5)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight).cross_entropy(y)
        loss.backward()
        optimizer.step(loss)
        return loss

    x = Tensor(np.ones((2, 3), np.float32)).realize()
    for turn in range(6):
        labels = Tensor([1, 9 if turn == 1 else 3]).realize()
        with pytest.raises(IndexRangeError) if turn == 1 else nullcontext():
            assert np.isfinite(step(x, labels).numpy())


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_gradient_of_an_argument_that_a_failed_step_left_stops_no_later_one(bad: int) -> None:
    """Arguments are realized before each call, and what was there stopped all of them."""

    def step(weight: Tensor, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    results = []
    for function in (step, jit(step)):
        weight = Tensor(np.ones((3, 4), np.float32), requires_grad=True).realize()
        optimizer, x = optim.SGD([weight], lr=0.5), Tensor(np.ones((2, 3), np.float32)).realize()
        for turn in range(6):
            labels = Tensor([1, 9 if turn == bad else 3]).realize()
            with pytest.raises(IndexRangeError) if turn == bad else nullcontext():
                results.append(function(weight, optimizer, x, labels).tolist())
    assert len(results) == 10
    assert results[:5] == pytest.approx(results[5:])


def test_what_another_thread_computed_meanwhile_is_captured_anew() -> None:
    """Its replays put back what the tensor was in the capture: all later updates were lost, without a word."""
    w, x = Tensor([1.0, 1.0]).realize(), Tensor([0.0, 0.0]).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        w.assign(w * 2 + x)
        reader = threading.Thread(target=w.numpy)
        reader.start()
        reader.join()
        return (w + 0).sum()

    assert [step(x).item() for _ in range(5)] == [4.0, 8.0, 16.0, 32.0, 64.0]
    assert w.tolist() == [32.0, 32.0]


def test_several_slices_of_one_tensor_are_written_in_place() -> None:
    """Each write counted as a result of its own, so that all but one copied the tensor: 40x slower with 16 rows."""
    table = Tensor.zeros(8, 4096).contiguous().realize()
    places = [Variable(f"place{n}", 0, 4095) for n in range(3)]

    def write(rows: Tensor, at: tuple[Any, ...]) -> Tensor:
        for n, place in enumerate(at):
            table[n : n + 1, place : place + 1] = rows[n : n + 1]
        return table.sum()

    captured = Jit(write, runs_first=False)
    sums = []
    for turn in range(3):
        bound = tuple(place.bind(5 * n + turn) for n, place in enumerate(places))
        sums.append(captured(Tensor([[1.0], [2.0], [3.0]]), bound).item())
    assert sums == [6, 12, 18]
    assert captured.memory().kept_bytes < table.numel() * 4


def test_a_cache_is_written_in_place_where_its_reader_is_realized_on_the_way() -> None:
    """As a sum over ranks does it. Expressions alive then read the new value, and not the old one below it: a model
    over ranks copied its whole cache for each token."""
    cache = Tensor.zeros(8, 4).contiguous().realize()
    place, memory = Variable("place", 0, 7), set[int]()

    @jit
    def step(x: Tensor, at: Any) -> Tensor:
        cache[at : at + 1] = x
        mixed = (cache * 2).sum(0)
        part = (mixed + 1).realize()
        return part * mixed

    wanted = np.zeros((8, 4), np.float32)
    for turn in range(6):
        wanted[turn] = turn + 1
        kept = cache.clone() if turn == 4 else None
        twice = 2 * wanted.sum(0)
        np.testing.assert_array_equal(
            step(Tensor(wanted[turn : turn + 1]), place.bind(turn)).numpy(), (twice + 1) * twice
        )
        np.testing.assert_array_equal(cache.numpy(), wanted)
        assert kept is None or kept.numpy()[turn].sum() == 0
        memory.add(0 if (found := buffer_of(cache)) is None else found.address)
    assert len(memory) <= 2  # the capture and its replays, which own theirs


def test_a_tensor_that_keeps_a_value_between_two_writes_keeps_it() -> None:
    table = Tensor.zeros(4, 8).contiguous().realize()
    table[0] = 1.0
    kept = table + 0
    table[1] = 2.0
    table.realize()
    assert kept.sum().item() == 8
    assert table.sum().item() == 24
