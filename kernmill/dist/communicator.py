"""What the ranks of one job tell each other: the interface, and ranks that are threads of one process.

A rank is one of `size` copies of a program that run at the same time. A collective (all_reduce, barrier, ..) is a call
that every rank makes, in the same order. All values are C-contiguous NumPy arrays, which are read or written in place.
A call begins an exchange, and returns the function that waits for its end; until then it owns the arrays.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

from kernmill.ir import KernmillError, np

__all__ = ["REDUCTIONS", "Communicator", "DistError", "Solo", "ThreadCommunicator", "Wait", "run_threads"]

Array: TypeAlias = Any
Wait: TypeAlias = Callable[[], None]
SAME_CALLS = "All ranks must make the same calls in the same order, with equal shapes and dtypes."
_ANNOUNCED = -1  # instead of a sender: what rank 0 announces
REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: np.maximum(a, b),
    "min": lambda a, b: np.minimum(a, b),
}


class DistError(KernmillError, RuntimeError):
    """Ranks that cannot work together: one is missing, silent, or has something else than the others."""


class Communicator(ABC):
    """The rank of this program among `size`, and what ranks exchange. Ranks are numbered from 0."""

    rank: int
    size: int
    local_rank: int = 0  # the number of this rank among those on this machine
    local_size: int = 1  # ranks on this machine
    are_threads: bool = False  # of one process
    sharers: int = 1  # processes that may use this one's CPUs

    @abstractmethod
    def send(self, array: Array, to: int, kind: str = "") -> Wait:
        """Send an array to one rank, which receives it with `recv`. `kind`: its dtype and shape."""

    @abstractmethod
    def recv(self, array: Array, source: int, kind: str = "") -> Wait:
        """Receive an array of the same kind and size from one rank."""

    @abstractmethod
    def all_reduce(self, outputs: Sequence[Array], inputs: Sequence[Array], op: str) -> Wait:
        """Combine each input of all ranks into the output with the same number. `op` is a key of `REDUCTIONS`."""

    @abstractmethod
    def all_gather(self, output: Array, array: Array) -> Wait:
        """Put the arrays of all ranks into `output`, one after the other by rank."""

    @abstractmethod
    def reduce_scatter(self, output: Array, array: Array, op: str) -> Wait:
        """Combine the arrays of all ranks; each rank receives its part, the `size`th of the whole."""

    @abstractmethod
    def broadcast(self, array: Array, root: int) -> Wait:
        """Give the array of rank `root` to all."""

    @abstractmethod
    def barrier(self) -> Wait:
        """End when all ranks have called this."""

    @abstractmethod
    def are_equal(self, number: int, call: str) -> Callable[[], bool]:
        """Compare an integer of 32 bits: the returned function is True if all ranks gave the same.

        `call` is what they are about to do, for errors.
        """

    @abstractmethod
    def announce(self, value: Any) -> None:
        """Give a small picklable value to all other ranks, which wait for it with `announced`. Rank 0 only."""

    @abstractmethod
    def announced(self) -> Any:
        """Wait, without a limit, for what rank 0 announces."""

    @abstractmethod
    def all_objects(self, value: Any) -> list[Any]:
        """Return what each rank gave, by rank: small picklable values, for checks at the start."""


def _over() -> None:
    """Wait for an exchange that has ended."""


class Solo(Communicator):
    """The only rank: a program that was started without `mpirun`."""

    rank, size = 0, 1

    def send(self, array: Array, to: int, kind: str = "") -> Wait:
        raise DistError(f"send: rank {to} is not there. This program has one rank; start it with mpirun -n 2.")

    def recv(self, array: Array, source: int, kind: str = "") -> Wait:
        raise DistError(f"recv: rank {source} is not there. This program has one rank; start it with mpirun -n 2.")

    def all_reduce(self, outputs: Sequence[Array], inputs: Sequence[Array], op: str) -> Wait:
        for output, array in zip(outputs, inputs, strict=True):
            output[...] = array
        return _over

    def all_gather(self, output: Array, array: Array) -> Wait:
        output[...] = array
        return _over

    def reduce_scatter(self, output: Array, array: Array, op: str) -> Wait:
        output[...] = array
        return _over

    def broadcast(self, array: Array, root: int) -> Wait:
        return _over

    def barrier(self) -> Wait:
        return _over

    def are_equal(self, number: int, call: str) -> Callable[[], bool]:
        return lambda: True

    def announce(self, value: Any) -> None:
        pass

    def announced(self) -> Any:
        raise DistError("announced: this job has no rank 0. Start the program with mpirun -n 2.")

    def all_objects(self, value: Any) -> list[Any]:
        return [value]


class _Meeting:
    """The memory that ranks of one process share."""

    def __init__(self, size: int, limit_s: float) -> None:
        self.limit_s = limit_s
        self.given: list[Any] = [None] * size
        self.arrived = [0] * size  # collectives that each rank has reached
        self.barrier = threading.Barrier(size)
        self.letters: dict[tuple[int, int], list[Any]] = {}
        self.posted = threading.Condition()
        self.error: DistError | None = None


class ThreadCommunicator(Communicator):
    """Ranks that are threads of one process, for tests and examples; see `run_threads`. Exchanges end at once."""

    are_threads = True

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank, self.size = rank, len(meeting.given)
        self.local_rank, self.local_size = self.rank, self.size

    def _wait(self, call: str) -> None:
        meeting = self._meeting
        try:
            meeting.barrier.wait(meeting.limit_s)
        except threading.BrokenBarrierError:
            if meeting.error is not None:
                raise meeting.error from None
            least = min(meeting.arrived)
            silent = [rank for rank, count in enumerate(meeting.arrived) if count == least and rank != self.rank]
            raise silence(call, silent, meeting.limit_s) from None

    def _exchange(self, value: Any, call: str) -> list[Any]:
        """Return what all ranks gave. Nobody goes on before all have read it."""
        self._meeting.given[self.rank] = value
        self._meeting.arrived[self.rank] += 1
        self._wait(call)
        return list(self._meeting.given)

    def send(self, array: Array, to: int, kind: str = "") -> Wait:
        with self._meeting.posted:
            self._meeting.letters.setdefault((self.rank, to), []).append((kind, array.copy()))
            self._meeting.posted.notify_all()
        return _over

    def recv(self, array: Array, source: int, kind: str = "") -> Wait:
        meeting = self._meeting
        letters = meeting.letters.setdefault((source, self.rank), [])
        with meeting.posted:
            if not meeting.posted.wait_for(lambda: letters or meeting.error is not None, meeting.limit_s):
                raise silence("recv", [source], meeting.limit_s)
            if not letters:
                raise meeting.error or silence("recv", [source], meeting.limit_s)
            sent, values = letters.pop(0)
        if (sent, values.shape, values.dtype) != (kind, array.shape, array.dtype):
            raise other_kind(source, kind)
        array[...] = values
        return _over

    def all_reduce(self, outputs: Sequence[Array], inputs: Sequence[Array], op: str) -> Wait:
        everybody = zip(*self._exchange([np.array(one) for one in inputs], "all_reduce"), strict=True)
        for output, given in zip(outputs, everybody, strict=True):
            output[...] = reduce(REDUCTIONS[op], given)
        self._wait("all_reduce")
        return _over

    def all_gather(self, output: Array, array: Array) -> Wait:
        output[...] = np.concatenate(self._exchange(array.copy(), "all_gather"))
        self._wait("all_gather")
        return _over

    def reduce_scatter(self, output: Array, array: Array, op: str) -> Wait:
        whole = reduce(REDUCTIONS[op], self._exchange(array.copy(), "reduce_scatter"))
        output[...] = np.split(whole, self.size)[self.rank]
        self._wait("reduce_scatter")
        return _over

    def broadcast(self, array: Array, root: int) -> Wait:
        array[...] = self._exchange(array.copy(), "broadcast")[root]
        self._wait("broadcast")
        return _over

    def barrier(self) -> Wait:
        self._exchange(None, "barrier")
        self._wait("barrier")
        return _over

    def are_equal(self, number: int, call: str) -> Callable[[], bool]:
        found = self._exchange(number, call)
        self._wait(call)
        return lambda: len({*found}) == 1

    def announce(self, value: Any) -> None:
        with self._meeting.posted:
            for rank in range(1, self.size):
                self._meeting.letters.setdefault((_ANNOUNCED, rank), []).append(value)
            self._meeting.posted.notify_all()

    def announced(self) -> Any:
        meeting = self._meeting
        letters = meeting.letters.setdefault((_ANNOUNCED, self.rank), [])
        with meeting.posted:
            meeting.posted.wait_for(lambda: letters or meeting.error is not None)
            if not letters:
                raise meeting.error or DistError("announced: rank 0 has ended.")
            return letters.pop(0)

    def all_objects(self, value: Any) -> list[Any]:
        found = self._exchange(value, "start")
        self._wait("start")
        return found


def silence(call: str, silent: Sequence[int], limit_s: float) -> DistError:
    """The error for ranks that do not answer, or answer in another call."""
    if not silent:
        return DistError(f"{call}: the ranks wait in different calls for {limit_s:g} s. {SAME_CALLS}")
    ranks = f"rank {silent[0]} has" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} have"
    return DistError(
        f"{call}: {ranks} not answered for {limit_s:g} s. Look at what they do there (a hang, or a call that only some "
        "ranks make), or raise COMM_TIMEOUT."
    )


def other_kind(source: int, kind: str) -> DistError:
    """The error for a message of another shape or dtype."""
    return DistError(
        f"recv: rank {source} has sent another shape or dtype than {kind}. Give recv a tensor like the sent one."
    )


def run_threads(size: int, function: Callable[[Communicator], Any], limit_s: float = 60) -> list[Any]:
    """Call `function(communicator)` on `size` ranks that are threads; return what each returns, by rank.

    Raises:
        whatever the first rank that failed raised; the others end with it.
    """
    meeting = _Meeting(size, limit_s)
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadCommunicator(meeting, rank))
        except BaseException as error:
            errors.append((rank, error))
            meeting.error = meeting.error or DistError(f"rank {rank} ended with {type(error).__name__}: {error}")
            meeting.barrier.abort()
            with meeting.posted:
                meeting.posted.notify_all()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results
