"""The collector stands still while nodes are made, and is afterwards as it was."""

from __future__ import annotations

import contextlib
import gc

import pytest

from kernmill.ir import no_collection


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with contextlib.suppress(ZeroDivisionError), no_collection():
            assert not gc.isenabled()
            _ = 1 // 0
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_an_interrupt_while_it_grows_old_leaves_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of a plan left the collector off for good."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    was_on = gc.isenabled()
    gc.enable()
    try:
        monkeypatch.setattr(gc, "get_freeze_count", interrupted)
        with pytest.raises(KeyboardInterrupt), no_collection():
            pass
        assert gc.isenabled()
    finally:
        (gc.enable if was_on else gc.disable)()


def test_what_was_made_without_the_collector_is_old() -> None:
    """Looking through the nodes of a plan right behind it took 15 of the 340 ms of CPU of a block's first call."""
    gc.collect()
    with no_collection():
        kept = [[number] for number in range(20_000)]
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < len(kept)
    assert gc.get_freeze_count() == 0


def test_what_a_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with no_collection():
            pass
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
