"""What a replay needs: memory that is used again only when nothing can see what was in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from kernmill import Tensor, dtypes, jit
from kernmill.captures import entry
from kernmill.captures.entry import Effects, Fresh
from kernmill.captures.ownership import buffer_of, refresh, stored
from kernmill.ir import UOp, setting
from kernmill.runtime import allocate_buffer


def fresh(numel: int = 4) -> Fresh:
    made = Fresh(allocate_buffer(str(setting("DEVICE")), dtypes.float32, numel))
    assert made.shape((2, numel // 2)) == 1
    assert made.shape((numel,)) == 2
    assert made.shape((2, numel // 2)) == 1
    return made


def test_memory_is_used_again_when_nobody_has_its_nodes() -> None:
    made = fresh()
    first = made.take()
    assert first.nodes[1].shape == (2, 2)
    node = first.nodes[2]
    second = made.take()
    assert second is not first
    assert made.take() is second
    del node
    assert made.take() is first


def test_memory_that_numpy_sees_is_not_used_again() -> None:
    made = fresh()
    first = made.take()
    tensor = Tensor._make(first.nodes[1], made.device)
    view = tensor.numpy()
    del tensor
    is_view = np.shares_memory(view, first.buffer.host_array())
    assert (made.take() is first) is not is_view


def test_large_memory_is_kept_for_few() -> None:
    for numel, kept in ((4, 4), (1 << 16, 2)):
        made = fresh(numel)
        taken = [made.take() for _ in range(6)]
        held = [spare.nodes[1] for spare in taken]
        assert len(held) == 6
        more = [made.take() for _ in range(1)]
        alive = [spare.nodes[1] for spare in more]
        assert len(made._pool) <= kept
        del alive, held


def test_effects_on_arguments() -> None:
    assert not Effects().change_arguments
    assert Effects(grads=[(0, len)]).change_arguments


class Holder:
    """Two places for tensors."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b


Step = Callable[[Holder, Tensor], Tensor]
Change = Callable[[Holder], object]


def both(step: Step, change: Change, start: Callable[[], Holder]) -> tuple[list[float], list[float]]:
    """Results before and after a change, plain and captured; then the state."""
    found = []
    for wrap in (lambda f: f, jit):
        holder, x, results = start(), Tensor([1.0]).realize(), []
        call: Callable[[Tensor], Tensor] = wrap(partial(step, holder))
        for _ in range(2):
            results += [call(x).item() for _ in range(4)]
            change(holder)
            results += [call(x).item() for _ in range(4)]
        found.append([*results, holder.a.item(), holder.b.item()])
    return found[0], found[1]


def stored_pair() -> Holder:
    return Holder(Tensor([1.0]).realize(), Tensor([10.0]).realize())


def constant_pair() -> Holder:
    return Holder(Tensor.full((1,), 2.0), Tensor(5.0).reshape(1))


def reads(m: Holder, x: Tensor) -> Tensor:
    return x * m.a + m.b


def writes(m: Holder, x: Tensor) -> Tensor:
    m.a.assign(m.a + x)
    return m.b * 2.0


def rebinds(m: Holder, x: Tensor) -> Tensor:
    m.a = m.a * 0.5 + x
    return m.a + m.b


def swaps(m: Holder, x: Tensor) -> Tensor:
    m.a, m.b = m.b, m.a
    return m.a * 3.0 + x


def unites(m: Holder, x: Tensor) -> Tensor:
    m.a.assign(m.a + x)
    result = m.b * 2.0
    m.b = m.a
    return result


def aliased(m: Holder) -> None:
    m.b = m.a


STEPS = (reads, writes, rebinds, swaps, unites)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "a", Tensor.full((1,), 3.0)),
        lambda m: setattr(m, "b", Tensor(3.0).reshape(1)),
        lambda m: m.a.replace(Tensor.full((1,), 3.0)),
        lambda m: m.b.assign(Tensor([3.0])),
        lambda m: m.a.assign(Tensor([4.0]) + 0.5),
        lambda m: m.a.realize(),
    ],
)
def test_a_constant_in_the_state_is_seen_when_it_changes(step: Step, change: Change) -> None:
    for start in (constant_pair, stored_pair):
        plain, captured = both(step, change, start)
        assert captured == plain


@pytest.mark.parametrize("step", STEPS)
def test_one_tensor_at_two_places_after_the_capture(step: Step) -> None:
    plain, captured = both(step, aliased, stored_pair)
    assert captured == plain


@pytest.mark.parametrize("step", STEPS)
def test_two_tensors_where_one_was_in_the_capture(step: Step) -> None:
    def start() -> Holder:
        one = Tensor([1.0]).realize()
        return Holder(one, one)

    for change in (
        lambda m: setattr(m, "b", m.a.clone()),
        lambda m: setattr(m, "b", Tensor([7.0]).realize()),
        lambda m: setattr(m, "b", Tensor([7.0])),
    ):
        plain, captured = both(step, change, start)
        assert captured == plain


def test_a_tensor_that_is_not_realized_goes_to_another_place() -> None:
    def change(m: Holder) -> None:
        m.a.assign(Tensor([4.0]))

    plain, captured = both(swaps, change, stored_pair)
    assert captured == plain


def test_equal_constants_need_no_other_capture() -> None:
    m = constant_pair()
    call = jit(partial(reads, m))
    for _ in range(5):
        assert call(Tensor([1.0])).item() == 7.0
        m.a = Tensor.full((1,), 2.0)
    assert call.cache_info().captures == 1


def test_a_result_keeps_its_values_when_another_shape_is_captured() -> None:
    states = [Tensor([1024.0]).realize()]

    @jit
    def halve(x: Tensor) -> Tensor:
        old = states[0]
        states[0] = old * 0.5
        return old

    x, other = Tensor([0.0]).realize(), Tensor([[0.0]]).realize()
    for _ in range(3):
        halve(x)
    result = halve(other)
    assert result.item() == 128.0
    for _ in range(4):
        halve(x)
    assert result.item() == 128.0


def test_memory_is_not_used_again_under_a_new_node() -> None:
    made = fresh()
    first = made.take()
    tensor = Tensor._make(first.nodes[1], made.device)
    refresh([tensor])
    assert all(made.take() is not first for _ in range(6))


def test_memory_is_used_again_in_a_loop() -> None:
    """What is counted must not stay referred to by the replay."""
    state = [Tensor([1.0]).realize()]

    @jit
    def step(x: Tensor) -> Tensor:
        state[0] = state[0] * 0.5 + x
        return state[0] + 1.0

    x, addresses = Tensor([1.0]).realize(), set()
    for _ in range(40):
        result = step(x)
        addresses |= {buffer.address for t in (result, state[0]) if (buffer := buffer_of(t)) is not None}
    assert len(addresses) <= 10


def first_other(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.assign(x * 2)
    y.assign(y + x)
    return y.reshape(4) + z


def a_part(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.assign(x * 2 + z)
    y[0] = x[1]
    return y


def alike(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    y.assign(y + 1)
    z.assign(z + 1)
    return x + y


@pytest.mark.parametrize("step", [first_other, a_part, alike])
@pytest.mark.parametrize("last", ["shares", "other", "same"])
def test_arguments_that_share_memory(step: Callable[[Tensor, Tensor, Tensor], Tensor], last: str) -> None:
    """Tensors of their own over one memory: what is written in place is what each of them holds afterwards."""

    def given() -> list[Tensor]:
        x = Tensor([1.0, 2.0, 3.0, 4.0]).clone().realize()
        other = Tensor([5.0, 6.0, 7.0, 8.0]).clone().realize()
        y, z = x.reshape(2, 2).clone().reshape(4), {"shares": x.clone(), "other": other, "same": x}[last]
        return [x, y, z]

    captured, one, two = jit(step), given(), given()
    for _ in range(4):
        one, two = given(), given()
        for a, b in zip([captured(*one), *one], [step(*two), *two], strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    kept = [tensor + 0.5 for tensor in one]  # of these values, whatever another call writes
    captured(*one)
    for a, b in zip(kept, two, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy() + 0.5)


def test_a_tensor_that_no_place_holds_may_change_between_replays() -> None:
    hidden = deque([Tensor(np.ones(4, np.float32)).realize()])  # jit does not look into it
    cache = Tensor(np.zeros((3, 4), np.float32)).realize()

    @jit
    def step(cache: Tensor, x: Tensor) -> Tensor:
        cache[0] = x
        return cache.sum(0) * hidden[0]

    want = np.zeros((3, 4), np.float32)
    for n in range(6):
        x = np.full(4, n, np.float32)
        want[0] = x
        if n == 4:
            hidden[0].assign(Tensor(np.full(4, 3, np.float32))).realize()
        scale = 3 if n >= 4 else 1
        assert np.array_equal(step(cache, Tensor(x)).numpy(), want.sum(0) * scale), n
        assert np.array_equal(cache.numpy(), want), n
    assert step.replays >= 3


def test_a_replay_that_gives_an_argument_back_still_has_it() -> None:
    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.assign(x + y).realize()
        return x, y * 2

    x, y = Tensor(np.zeros(4, np.float32)).realize(), Tensor(np.ones(4, np.float32)).realize()
    for n in range(1, 6):
        same, double = step(x, y)
        assert same is x
        assert x.numpy()[0] == n
        assert double.numpy()[0] == 2


def test_what_another_thread_gives_meanwhile_is_found_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """`CapturedCall._follow` notes the node whose memory it takes, not the one that is there when it is done."""
    rate = Tensor([1.0]).realize()
    times = jit(lambda x: x * rate)
    x = Tensor([2.0, 3.0]).realize()
    for _ in range(3):
        times(x)
    given = deque([Tensor([5.0]).realize(), Tensor([7.0]).realize()])
    rate.replace(given.popleft())

    def stored_late(uop: UOp) -> UOp | None:
        found = stored(uop)
        if given and uop is rate.uop:
            rate.replace(given.popleft())
        return found

    monkeypatch.setattr(entry, "stored", stored_late)
    assert times(x).tolist() in ([10.0, 15.0], [14.0, 21.0])
    assert not given
    assert times(x).tolist() == [14.0, 21.0]
    assert times.cache_info().captures == 1
