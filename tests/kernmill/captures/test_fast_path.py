"""Straight code for whole calls: it launches only what it was written for, and is what plain execution is."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, Tensor, Variable, jit, nn
from kernmill.captures.entry import CapturedCall
from kernmill.captures.ownership import buffer_of, own
from kernmill.captures.reader import MISS
from kernmill.runtime import collecting_kernels


def real(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32)).realize()


W = real(5, 7)
N = Variable("n", 1, 2)


def with_state(x: Tensor) -> Tensor:
    return x * W + 1


def nested(x: Tensor, y: Tensor) -> Any:
    return [x + y, (x, {"y": y * 2, "one": 1})], W, Tensor([3.0]), (x - y).reshape(2, 1)


def sized(x: Tensor, n: Any) -> Any:
    return x[:n].sum(), n, x * n


@pytest.mark.parametrize(
    ("function", "looks"),
    [
        (with_state, [(real(1, 2),), (real(3, 4),), (real(1, 2).reshape(2),)]),
        (nested, [(real(1, 2), real(3, 4)), (real(5, 6), real(7, 8))]),
        (sized, [(real(1, 2), N.bind(1)), (real(1, 2), N.bind(2)), (real(4, 5), N.bind(1))]),
        (lambda x: x.exp(), [(real(1, 2),)]), (lambda x: None, [(real(1, 2),)]), (lambda: W * 2, [()]),
        (lambda x: x, [(real(1, 2),), (real(3, 4),)]), (lambda x: x[1:], [(real(1, 2),), (real(3, 4),)]),
    ],
)  # fmt: skip
def test_it_is_what_plain_execution_is(function: Callable[..., Any], looks: list[Any]) -> None:
    step = jit(function)
    kept = []
    for turn in range(6):
        for look in looks:
            found = step(*look)
            kept.append((found, show(found)))
            assert show(found) == show(function(*look))
            if turn > 2:
                assert step._recent
                (entry,) = (e for e in step._recent[:1])
                assert entry.call is not None
                again = entry.call(look, {})
                assert again is not MISS
                assert show(again) == show(found)
    for found, shown in kept:  # nothing was written where an older result lies
        assert show(found) == shown


def show(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy().tolist()
    if isinstance(value, (list, tuple)):
        return [show(item) for item in value]
    return [show(item) for item in value.items()] if isinstance(value, dict) else value


def test_state_that_moved() -> None:
    """A tensor of the state in other memory, then back: the addresses are those of now."""
    weight = real(1, 2)
    step = jit(lambda x: x * weight)
    x = real(3, 4)
    for _ in range(4):
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() * weight.numpy())
    for value in range(4):
        weight.assign(weight + value).realize()
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() * weight.numpy())
        weight.replace(real(value, 1))
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() * weight.numpy())
        np.testing.assert_array_equal(step(x).numpy(), x.numpy() * weight.numpy())


def test_reports_are_made_when_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    step = jit(lambda x: x * 3)
    x = real(1, 2)
    for _ in range(4):
        step(x)
    with collecting_kernels() as found:
        step(x)
    assert len(found) == 1
    capsys.readouterr()
    with Context(DEBUG=2):
        step(x)
    assert capsys.readouterr().err
    step(x)
    assert not capsys.readouterr().err


def test_results_outlive_many_calls() -> None:
    """More results alive than memory is kept for; some with views, some seen by NumPy."""
    step = jit(lambda x: (x * 2, (x + 1).reshape(2, 1)))
    alive: list[Any] = []
    for value in range(20):
        a, b = step(real(value, value))
        alive.append((value, a if value % 3 else a.numpy(), b[1] if value % 2 else b))
        if value % 5 == 4:
            del alive[::2]
        for v, first, second in alive:
            np.testing.assert_array_equal(first if isinstance(first, np.ndarray) else first.numpy(), [2 * v, 2 * v])
            assert set(second.numpy().ravel()) == {v + 1}


def test_a_launch_that_fails_leaves_no_trace() -> None:
    table = real(1, 2, 3)
    step = jit(lambda i: table[i] * 2)
    for at in ([0, 1], [2, 2], [1, 0]):
        np.testing.assert_array_equal(step(Tensor(at).realize()).numpy(), 2 * table.numpy()[at])
    with pytest.raises(IndexError):
        step(Tensor([0, 7]).realize())
    np.testing.assert_array_equal(step(Tensor([2, 0]).realize()).numpy(), [6, 2])


def test_a_step_in_another_context() -> None:
    """Code that ended in the entry itself had a variable of the name of what asks for the settings, and failed."""
    total = real(0, 0)

    @jit
    def step(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total * 2

    for number in range(4):
        assert step(real(1, 2)).tolist() == [2.0 * (number + 1), 4.0 * (number + 1)]
    with Context(THREADS=1):
        assert step(real(1, 2)).tolist() == [10.0, 20.0]
    for threads in (1, 2, 1, 1, 2):
        with Context(THREADS=threads):
            step(real(1, 2))
    assert step(real(1, 2)).tolist() == [22.0, 44.0]


def test_tensors_that_are_written_are_looked_for_elsewhere_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's own variables counted as somebody who sees the last argument: each call walked over all tensors."""
    walks: list[Any] = []

    def counted(tensor: Any, shared: Any) -> Any:
        walks.append(tensor)
        return own(tensor, shared)

    monkeypatch.setattr("kernmill.captures.entry.own", counted)
    first, second = Tensor([1.0, 2.0, 3.0, 4.0]), Tensor([1.0, 2.0])

    @jit
    def step(parts: list[Tensor]) -> None:
        for part in parts:
            part[:1] = part[:1] + 1.0

    for _ in range(6):
        step([first, second])
    assert len(walks) == 2
    kept = second + 0.0  # somebody sees it now
    step([first, second])
    assert len(walks) == 4
    assert kept.tolist() == [7.0, 2.0]
    assert (first.tolist(), second.tolist()) == ([8.0, 2.0, 3.0, 4.0], [8.0, 2.0])


def _interrupted(call: Callable[[], object], at: int) -> bool:
    """Whether Ctrl-C came: at the bytecode of this number in the code that replays."""
    left = at

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        place = frame.f_code.co_filename
        if "captured function" not in place and not place.endswith(("runtime/replay.py", "kernmill/captures/entry.py")):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("function", [with_state, sized])
def test_a_replay_that_was_interrupted_leaves_nothing_half_done(function: Callable[..., Any]) -> None:
    """Addresses and variables count as given only when each of their places holds them."""
    step = jit(function)
    looks: list[Any] = [(real(n, 2).to(W.device).realize(), N.bind(n)) for n in (1, 2)]
    looks = [look[: 1 if function is with_state else 2] for look in looks]
    wanted = [show(function(*look)) for look in looks]
    for _ in range(3):
        assert [show(step(*look)) for look in looks] == wanted
    count = 0
    while _interrupted(lambda: step(*looks[1]), count):
        assert [show(step(*looks[number])) for number in (1, 0)] == wanted[::-1], count
        count += 1
    assert count > 100


def test_state_that_is_taken_over_is_known_when_all_of_it_is() -> None:
    """Ctrl-C while other weights are looked up: they were taken for known, with the addresses of those before."""
    weights: list[Tensor] = []
    step = jit(lambda x: x * weights[0] + weights[1])
    x, looks = real(5, 6), [(real(1, 2), real(3, 4)), (real(7, 8), real(9, 10))]

    def call(number: int) -> Any:
        weights[:] = looks[number]
        return show(step(x))

    wanted = [[8, 16], [44, 58]]
    for _ in range(3):
        assert [call(0), call(1)] == wanted
    count = 0
    while _interrupted(lambda: call(1), count):
        assert [call(1), call(0)] == wanted[::-1], count
        count += 1
    assert count > 1000


def trained(lr: float = 0.1, last: dict[str, Tensor] | None = None) -> tuple[Any, list[Tensor], Any]:
    """A captured step over two parameters with Adam, and the same step without jit over others. `last`: twice the last
    loss is put there."""
    made = []
    for _ in range(2):
        params = [Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), requires_grad=True),
                  Tensor(np.linspace(0, 1, 4, dtype=np.float32), requires_grad=True)]  # fmt: skip
        optimizer = nn.optim.Adam(params, lr)
        made.append((params, optimizer))

    def step_of(params: list[Tensor], optimizer: Any, last: Any) -> Callable[[Tensor, Tensor], Tensor]:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (x @ params[0] + params[1]).relu().cross_entropy(y)
            loss.backward()
            also = [] if last is None else [loss * 2]
            optimizer.step(loss, *also)
            if last is not None:
                last["loss"] = also[0]
            return loss

        return step

    return jit(step_of(*made[0], last)), made[0][0], partial(step_of(*made[1], None if last is None else {}))


def batch() -> tuple[Tensor, Tensor]:
    """Numbers and labels, on the device of the test."""
    return real(1, 2, 3, 4, 5, 6).reshape(2, 3), Tensor([1, 3]).realize()


def addresses(params: list[Tensor]) -> list[int]:
    return [buffer_of(p.grad).address for p in params]  # type: ignore[union-attr,arg-type]


def test_a_training_step_is_what_plain_execution_is_and_writes_gradients_where_they_are() -> None:
    step, params, plain = trained()
    places = []
    for turn in range(8):
        assert show(step(*batch())) == pytest.approx(show(plain(*batch())), rel=1e-4)
        places.append((addresses(params), [id(p.grad) for p in params]))
        assert turn < 3 or step._recent[0].call is not None
    assert places[4] == places[5] == places[6] == places[7]


def grad_of(params: list[Tensor]) -> Tensor:
    assert params[0].grad is not None
    return params[0].grad


@pytest.mark.parametrize(
    "look",
    [
        grad_of, lambda params: grad_of(params).numpy(), lambda params: grad_of(params).detach(),
        lambda params: grad_of(params) * 2, lambda params: [grad_of(params).reshape(12)],
        lambda params: (grad_of(params) + 1).realize(), lambda params: params[0].clone().detach(),
        lambda params: params[0].numpy(), lambda params: params[0] * 2, lambda params: {"x": grad_of(params)[1:]},
    ],
)  # fmt: skip
def test_what_somebody_keeps_of_a_step_stays_as_it_is(look: Callable[[list[Tensor]], Any]) -> None:
    step, params, _ = trained()
    for _ in range(5):
        step(*batch())
    kept = look(params)
    shown = show(copied(kept))
    for _ in range(3):
        step(*batch())
        assert show(copied(kept)) == shown
    del kept
    step(*batch())
    place = addresses(params)
    step(*batch())
    assert addresses(params) == place  # nobody looks any more


def copied(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_a_gradient_that_was_exchanged_or_taken_away_between_steps() -> None:
    step, params, plain = trained()
    for _ in range(5):
        step(*batch()), plain(*batch())
    mine = Tensor(np.full((3, 4), 7, np.float32)).realize()
    params[0].grad = mine
    assert show(step(*batch())) == pytest.approx(show(plain(*batch())), rel=1e-4)
    assert show(mine) == [[7] * 4] * 3
    params[1].grad = None
    for _ in range(3):
        assert show(step(*batch())) == pytest.approx(show(plain(*batch())), rel=1e-4)


def test_a_gradient_that_is_added_to_is_read_first() -> None:
    """Once it was zeroed by hand; then each step adds to what is there, which no replay may write over."""
    w = Tensor(np.ones((2, 2), np.float32), requires_grad=True)

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (x @ w).sum()
        loss.backward()
        w.grad.realize(loss)  # type: ignore[union-attr]
        return loss

    for turn in range(6):
        step(real(1, 2).reshape(1, 2))
        assert show(w.grad) == [[turn + 1] * 2, [2 * turn + 2] * 2]


def test_a_step_that_returns_its_gradient_gives_another_each_time() -> None:
    w = Tensor(np.ones(2, np.float32), requires_grad=True)

    @jit
    def step(x: Tensor) -> Any:
        w.grad = None
        (w * x).sum().backward()
        w.grad.realize()  # type: ignore[attr-defined]
        return w.grad

    kept = [step(real(turn, 2)) for turn in range(6)]
    assert show(kept) == [[turn, 2] for turn in range(6)]


def test_a_label_out_of_range_is_told_by_a_replay_that_writes_in_place() -> None:
    step, params, _ = trained()
    for _ in range(5):
        step(*batch())
    with pytest.raises(IndexRangeError):
        step(batch()[0], Tensor([1, 9]).realize())
    step(*batch())
    assert np.isfinite(params[0].numpy()).all()


def test_a_cache_that_is_written_in_place_by_straight_code() -> None:
    cache = Tensor(np.zeros((4, 2), np.float32)).realize()
    place = Variable("p", 0, 3)

    @jit
    def put(x: Tensor, p: Any) -> Tensor:
        cache[p : p + 1] = x
        return cache.sum().realize(cache)

    wanted = np.zeros((4, 2), np.float32)
    for turn in range(12):
        wanted[turn % 4] = turn
        old = cache.clone() if turn == 7 else None
        before = show(old) if old is not None else None
        assert show(put(real(turn, turn).reshape(1, 2), place.bind(turn % 4))) == wanted.sum()
        assert show(cache) == wanted.tolist()
        assert old is None or show(old) == before


class Box:
    """Some tensors."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors


@pytest.mark.parametrize("seen_by", ["nobody", "a detached tensor", "an array", "a clone that is lazy", "a part"])
def test_state_that_guards_do_not_see_is_written_by_straight_code(seen_by: str) -> None:
    """A model's cache: held by the capture among its weights, of which a call looks at nothing but what it writes."""
    hidden = [real(*range(number, number + 8)) for number in range(6)]
    behind = weakref.ref(box := Box(hidden))  # guards do not follow it
    place = Variable("p", 0, 7)

    @jit
    def put(x: Tensor, p: Any) -> Tensor:
        first, second, *weights = behind().tensors  # type: ignore[union-attr]
        first[p : p + 1] = x
        second[p : p + 1] = x * 2
        return sum(weights, first + second).sum().realize(first, second)

    look: dict[str, Callable[[Tensor], Any]] = {
        "nobody": lambda t: None, "a detached tensor": Tensor.detach, "an array": Tensor.numpy,
        "a clone that is lazy": Tensor.clone, "a part": lambda t: t[2:4],
    }  # fmt: skip
    wanted = [np.arange(number, number + 8, dtype=np.float32) for number in range(6)]
    for turn in range(14):
        wanted[0][turn % 8], wanted[1][turn % 8] = turn, 2 * turn
        old = look[seen_by](hidden[turn % 2]) if turn in (7, 8, 11) else None
        before = wanted[turn % 2].copy() if old is not None else None
        if before is not None and seen_by not in ("a detached tensor", "a part"):  # views show what is written
            before[turn % 8] = hidden[turn % 2].numpy()[turn % 8]
        assert show(put(real(turn), place.bind(turn % 8))) == np.sum(wanted)
        if before is not None:
            assert np.asarray(old).tolist() == (before[2:4] if seen_by == "a part" else before).tolist()
        assert [show(t) for t in hidden] == [w.tolist() for w in wanted]
    (entry,) = put._recent
    assert entry.lasting == set()
    assert len(entry.held) == len(box.tensors)
    assert {id(t) for t in entry.held[:2]} == {id(t) for t in hidden[:2]}
    hidden[3].assign(hidden[3] + 1)
    assert show(put(real(0), place.bind(0))) == np.sum(wanted) - wanted[0][0] - wanted[1][0] + 8


def test_gradients_are_out_of_their_places_while_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread finds None there, as after zero_grad(); what it took a moment earlier is not written."""
    step, params, _ = trained()
    for _ in range(5):
        step(*batch())
    (entry,) = step._recent
    shown: list[Any] = []
    launch, count = entry.replay.launch, CapturedCall.is_alone
    monkeypatch.setattr(entry, "call", None)

    def watched(given: Any, **how: Any) -> None:
        shown.append([None if p.grad is None else "a gradient" for p in params])
        launch(given, **how)

    monkeypatch.setattr(entry.replay, "launch", watched)
    step(*batch())  # the way that knows every case puts others at the places
    assert None not in shown[-1]
    with ThreadPoolExecutor(1) as pool:
        place = addresses(params)
        step(*batch())
        assert (addresses(params), shown[-1]) == (place, [None, None])

        def taken(entry: CapturedCall, state: Any) -> bool:
            kept.append(pool.submit(lambda: (params[0].grad, show(grad_of(params)))).result())
            return count(entry, state)

        kept: list[Any] = []
        monkeypatch.setattr(CapturedCall, "is_alone", taken)
        monkeypatch.setattr(entry, "call", None)
        for _ in range(4):
            step(*batch())
    assert len(kept) > 2
    assert all(show(grad) == values for grad, values in kept)


@pytest.mark.parametrize("is_locked", [True, False])
def test_what_a_step_puts_elsewhere_is_another_each_time(is_locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last loss at an attribute, and who keeps it, beside gradients that stay if counts are exact."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: is_locked, raising=False)
    w = Tensor(np.ones(2, np.float32), requires_grad=True)
    last: dict[str, Tensor] = {}

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        last["twice"] = loss * 2
        return loss.realize(w.grad, last["twice"])  # type: ignore[arg-type]

    kept, places = [], []
    for turn in range(8):
        assert show(step(real(turn, 2))) == turn + 2
        kept.append((turn, last["twice"]))
        places.append(addresses([w]))
        assert show(w.grad) == [turn, 2]
    assert step._recent[0].call is not None
    assert [show(value) for _, value in kept] == [2 * (turn + 2) for turn, _ in kept]
    assert (places[5] == places[6] == places[7]) is is_locked
    last["twice"] = real(7).reshape(())
    assert show(step(real(5, 2))) == 7
    assert last["twice"].item() == 14


def test_threads_that_read_gradients_see_none_or_those_of_one_step() -> None:
    """Each step's gradient is one number everywhere: a torn one would show two."""
    size = 1 << (8 if real(0).device == "PYTHON" else 16)  # which is slow
    w = Tensor(np.zeros(size, np.float32), requires_grad=True)
    wrong: list[Any] = []
    seen: list[Tensor] = []
    is_done = threading.Event()

    @jit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss.realize(w.grad)  # type: ignore[arg-type]

    def read() -> None:
        while not is_done.is_set():
            if (grad := w.grad) is not None:
                first = grad.numpy().copy()
                time.sleep(0)
                again = grad.numpy().copy()
                if first.min() != first.max() or (first != again).any():
                    wrong.append((first, again))
                seen.append(grad)
                del seen[:-2]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    turn, end = 0, time.monotonic() + 2
    try:
        with ThreadPoolExecutor(2) as pool:
            try:
                readers = [pool.submit(read) for _ in range(2)]
                while turn < 1000 and time.monotonic() < end:
                    turn += 1
                    step(real(turn))
            finally:
                is_done.set()
        assert [reader.result() for reader in readers] == [None, None]
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert set(w.grad.numpy()) == {turn}  # type: ignore[union-attr]
    seen.clear()
    for _ in range(3):
        step(real(1))
    place = addresses([w])
    step(real(1))
    assert addresses([w]) == place  # nobody looks any more


@pytest.mark.parametrize("last", [None, {}])
def test_a_training_step_that_was_interrupted_was_done_or_not(last: dict[str, Tensor] | None) -> None:
    """Ctrl-C at any bytecode: its gradients may be None then, as in plain execution; later steps are right."""
    step, params, plain = trained(last=last)
    wanted = [show(plain(*batch())) for _ in range(4)]
    for loss in wanted:
        assert show(step(*batch())) == pytest.approx(loss, rel=1e-4)
    count = lost = 0
    while True:
        is_cut = _interrupted(lambda: step(*batch()), count)
        now, ahead = [show(p) for p in params], show(plain(*batch()))
        lost += any(p.grad is None for p in params)
        found = show(step(*batch()))
        if is_cut and found == pytest.approx(ahead, rel=1e-4):  # it was not done
            pass
        else:
            assert found == pytest.approx(show(plain(*batch())), rel=1e-4), (count, now)
        for _ in range(2):
            assert show(step(*batch())) == pytest.approx(show(plain(*batch())), rel=1e-4), count
        if not is_cut:
            break
        count += 17
    assert count > 1000
    assert lost < 10, "they are put back, but for an interruption while they are"


def test_a_gradient_that_a_failed_step_has_overwritten_is_not_read() -> None:
    """It had the values of the failed step, and looked as if it were that of the last good one."""
    step, params, plain = trained()
    for _ in range(5):
        step(*batch())
    with pytest.raises(IndexRangeError):
        step(batch()[0], Tensor([1, 9]).realize())
    for param in params:
        with pytest.raises(IndexRangeError, match="a class outside"):
            param.grad.numpy()  # type: ignore[union-attr]
    for _ in range(3):
        assert np.isfinite(step(*batch()).numpy())
        assert np.isfinite(params[0].grad.numpy()).all()  # type: ignore[union-attr]
    assert step.cache_info().captures == 1
    del plain


def test_places_keep_what_they_had_when_a_check_fails() -> None:
    """By the way that makes new memory for them; what was assigned is, in place or not."""
    m = SimpleNamespace(table=real(1, 2, 3), seen=real(0), sum=real(0), last=real(0))

    @jit
    def step(place: Tensor) -> Any:
        old = m.sum.detach()
        value = m.table[place]
        m.seen.assign(m.seen + 1)
        m.sum.assign(m.sum + m.seen)
        m.last = value * 2
        return old

    for turn in range(5):
        step(Tensor([turn % 3]).realize())
    last = m.last.tolist()
    with pytest.raises(IndexRangeError):
        step(Tensor([3]).realize())
    assert (m.seen.tolist(), m.sum.tolist(), m.last.tolist()) == ([6], [21], last)
