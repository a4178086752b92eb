"""An attribute that is computed once, and that a forked child can compute."""

from __future__ import annotations

import os
import threading

import pytest

from kernmill.ir import cached_property


class Slow:
    def __init__(self) -> None:
        self.begun, self.may_end, self.calls = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self) -> int:
        """The value."""
        self.calls += 1
        self.begun.set()
        self.may_end.wait(20)
        return 7


def test_it_is_computed_once() -> None:
    slow = Slow()
    slow.may_end.set()
    assert (slow.value, slow.value, slow.calls) == (7, 7, 1)
    assert Slow.value.__doc__ == "The value."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_computes_it_works() -> None:
    """One of functools waits there for the lock of the other thread, which the child does not have."""
    slow, other = Slow(), Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait()
    other.may_end.set()
    child = os.fork()
    if child == 0:
        threading.Thread(target=lambda: (other.value, os._exit(0)), daemon=True).start()
        threading.Event().wait(10)
        os._exit(1)
    slow.may_end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
