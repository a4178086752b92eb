"""What a replay needs: memory that is used again only when nothing can see what was in it."""

from __future__ import annotations

import numpy as np

from kernmill import Tensor, dtypes
from kernmill.entry import Effects, Fresh
from kernmill.ir import setting
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
        assert len(made._spares) <= kept
        del alive, held


def test_effects_on_arguments() -> None:
    assert not Effects().change_arguments
    assert Effects(grads=[(0, len)]).change_arguments
