"""The collector stands still while nodes are made, and is afterwards as it was."""

from __future__ import annotations

import contextlib
import gc
import os
import threading

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
    gc.collect(1)
    with no_collection():
        kept = [[number] for number in range(20_000)]
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < len(kept)
    assert gc.get_freeze_count() == 0


def test_an_interrupt_leaves_nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting frozen objects in each later call made a process of many objects ten times as slow."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patched:
            patched.setattr(gc, "unfreeze", interrupted)
            with pytest.raises(KeyboardInterrupt), no_collection():
                pass
        assert gc.get_freeze_count()
        with no_collection():
            pass
        assert not gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_what_a_user_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with no_collection():
            pass
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_makes_nodes_collects() -> None:
    """The thread that would have turned the collector on again is not there."""
    begun, may_end = threading.Event(), threading.Event()

    def plan() -> None:
        with no_collection():
            begun.set()
            may_end.wait()

    was_on = gc.isenabled()
    gc.enable()
    thread = threading.Thread(target=plan)
    thread.start()
    try:
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(gc.isenabled())
        assert not gc.isenabled()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        may_end.set()
        thread.join()
        assert gc.isenabled()
        (gc.enable if was_on else gc.disable)()
