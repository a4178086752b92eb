"""Locks in forked children."""

import os
import threading
import time

import pytest

from kernmill.ir import before_forks, process_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def result_in_child(work: object) -> int:
    """What a forked child exits with."""
    child = os.fork()
    if child == 0:
        os._exit(int(work()))  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    lock, is_held, may_end = process_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            may_end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    try:
        assert result_in_child(lambda: lock.acquire(blocking=False)) == 1
        assert not lock.acquire(blocking=False)
    finally:
        may_end.set()
        holder.join()


def test_a_lock_that_the_forking_thread_holds_stays_held() -> None:
    lock = process_lock()

    def release() -> int:
        lock.release()
        return 7

    with lock:
        assert result_in_child(release) == 7


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_who_imports() -> None:
    """A child once waited for Python's lock of a module that another thread was importing: that thread is not there."""
    begun, left = threading.Event(), []

    def late() -> None:
        with before_forks():
            begun.set()
            time.sleep(0.2)
            left.append(True)

    thread = threading.Thread(target=late)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        with before_forks():
            os._exit(0 if left else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_a_long_block_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM in a child would wait for a lock that a thread of the parent held."""
    monkeypatch.setattr("kernmill.ir.process.locks._PATIENCE_S", 0.01)
    begun, left = threading.Event(), []

    def compile_something() -> None:
        with before_forks(is_long=True):
            begun.set()
            time.sleep(0.2)
            left.append(True)

    thread = threading.Thread(target=compile_something)
    thread.start()
    begun.wait()
    assert result_in_child(lambda: len(left)) == 1
    thread.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_plain_lock_is_free_in_a_child_too() -> None:
    lock = process_lock(threading.Lock)
    with lock:
        assert result_in_child(lambda: lock.acquire(blocking=False)) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_long_block_a_fork_waits_for_who_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernmill.ir.process.locks._PATIENCE_S", 0.6)
    begun, left = threading.Event(), []

    def compiles() -> None:
        with before_forks(is_long=True):
            begun.set()
            time.sleep(0.8)

    def imports() -> None:
        time.sleep(0.7)
        with before_forks():
            time.sleep(0.2)
            left.append(True)

    threads = [threading.Thread(target=work) for work in (compiles, imports)]
    for thread in threads:
        thread.start()
    begun.wait()
    assert result_in_child(lambda: bool(left)) == 1
    for thread in threads:
        thread.join()
