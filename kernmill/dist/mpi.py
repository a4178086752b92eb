"""Ranks that are processes of an MPI job, through mpi4py (extra `dist`).

A rank that waits asks MPI again and again, so that Ctrl-C works and a silent rank is an error after COMM_TIMEOUT.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

from kernmill.ir import np, setting

from .communicator import REDUCTIONS, SAME_CALLS, Array, Communicator, DistError, Wait, other_kind, silence
from .ending import ROLL_CALL_S, Ending

__all__ = ["MpiCommunicator", "job_rank", "job_size"]

_SPINS = 20_000  # questions without a pause: some ms, longer than ranks of equal work are apart
_SPIN_S = 1.0  # ... of a rank with a CPU of its own, which kernels find cold after a pause: a token takes less
_GLANCE = 100  # questions before other programs may have the CPU
_PAUSE_S = 50e-6
_give_way = getattr(os, "sched_yield", partial(time.sleep, 0))
_HEAD_BYTES = 512  # of an announcement: most are smaller, and one message
_ENDED = 1  # the tag of a roll call by which a rank says that it ends
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "SLURM_PROCID")


def job_size() -> int:
    """The number of ranks that the launcher started (mpirun, or srun of Slurm); 1 without a launcher."""
    sizes = [os.environ[name] for name in _SIZE_VARIABLES if name in os.environ]
    return max((int(size) for size in sizes if size.isdigit()), default=1)


def job_rank() -> int:
    """The rank that the launcher gave, known before MPI starts; 0 without a launcher."""
    found = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
    return int(found[0]) if found and found[0].isdigit() else 0


def _cpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()


def _sharers(cpus: Sequence[frozenset[int]], mine: int) -> int:
    """The number of ranks that may use a CPU of this one: one, where a launcher binds each rank to its own CPUs."""
    return sum(not cpus[mine] or bool(one & cpus[mine]) for one in cpus)


ENDING = Ending(job_rank())
if job_size() > 1:
    ENDING.install()


class MpiCommunicator(Communicator):
    """All ranks of an MPI job."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # no mpi4py, or no library that it can load
            reason = str(error).partition("\n")[0]
            raise DistError(
                f"mpirun started this program, and MPI cannot be imported ({reason}). "
                "pip install 'kernmill[dist]' on each machine."
            ) from None
        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD.Dup()  # calls of the user's own do not meet ours
        self._roll_call: Any = MPI.COMM_WORLD.Dup()
        self._announcements: Any = MPI.COMM_WORLD.Dup()
        self._objects: Any = MPI.COMM_WORLD.Dup()
        self._most_tag: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        self._ops: dict[tuple[str, str], Any] = {}
        self._calls = 0
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        if self.size < job_size():
            raise DistError(
                f"mpirun started {job_size()} ranks, and the MPI library of Python sees {self.size}: they are of "
                f"different MPI libraries. Use the mpirun of {MPI.Get_library_version().split()[0]}, or build mpi4py "
                "for the other library."
            )
        here = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = here.Get_rank(), here.Get_size()
        self.sharers = _sharers(here.allgather(_cpus()), self.local_rank)
        self._spin_s = _SPIN_S if len(_cpus()) >= self.sharers else 0.0
        here.Free()
        ENDING.abort, ENDING.leave = self.abort, self._leave

    def abort(self, status: int) -> None:
        """End all ranks at once with this exit status."""
        self._mpi.COMM_WORLD.Abort(status)

    def _leave(self) -> None:
        """Tell the others that this rank ends: who waits for it need not wait for long."""
        note = np.zeros(1, np.int64)
        self._notes = [self._roll_call.Isend(note, dest=r, tag=_ENDED) for r in range(self.size) if r != self.rank]

    # --- waiting
    def _wait(self, request: Any, call: str, others: Sequence[int] | None = None, status: Any = None) -> None:
        """Return when the request is done. `others`: the ranks it needs; None: all. `status`: MPI's, of what came.

        Raises:
            DistError: COMM_TIMEOUT is over, a rank has ended, or ranks exchange different things.
        """
        ENDING.status = 0  # the program went on after an exit that it caught
        self._calls += others is None
        try:
            if self._is_done_soon(request, status):
                return
            limit_s = float(setting("COMM_TIMEOUT"))
            end = time.monotonic() + limit_s
            while not request.Test(status):
                if time.monotonic() > end:
                    raise silence(call, self._missing_ranks() if others is None else others, limit_s)
                gone = self._ended_rank(others)
                if gone is not None and not self._is_done_late(request, status):
                    raise DistError(f"{call}: rank {gone} has ended. All ranks must make the same calls.")
                time.sleep(_PAUSE_S)
        except self._mpi.Exception as error:
            reason = str(error).partition(",")[0]
            raise DistError(f"{call}: the ranks exchange different things ({reason}). {SAME_CALLS}") from None

    def _wait_for_ever(self, request: Any) -> None:
        """Return when the request is done: rank 0 may wait for a user."""
        if self._is_done_soon(request):
            return
        while not request.Test():
            if self._ended_rank([0]) is not None and not self._is_done_late(request):
                raise DistError("announced: rank 0 has ended.")
            time.sleep(_PAUSE_S)

    def _is_done_soon(self, request: Any, status: Any = None) -> bool:
        """Ask without a pause for a while, first of all alone and then between others. False: it is not done then."""
        for _ in range(_SPINS):
            if request.Test(status):
                return True
        end = time.monotonic() + self._spin_s
        while time.monotonic() < end:
            for _ in range(_GLANCE):
                if request.Test(status):
                    return True
            _give_way()  # the other rank may be waiting for this very CPU
        return False

    def _ended_rank(self, others: Sequence[int] | None) -> int | None:
        """One of these ranks that has said that it ends."""
        for rank in range(self.size) if others is None else others:
            if self._roll_call.Iprobe(source=rank, tag=_ENDED):
                return rank
        return None

    def _is_done_late(self, request: Any, status: Any = None) -> bool:
        """True if what a rank has sent before its end still comes."""
        end = time.monotonic() + ROLL_CALL_S
        while not request.Test(status):
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _missing_ranks(self) -> list[int]:
        """The ranks that do not wait in the same collective: the others tell each other that they do."""
        note = np.array([self._calls], np.int64)
        notes = [self._roll_call.Isend(note, dest=rank) for rank in range(self.size) if rank != self.rank]
        here = {self.rank}
        end = time.monotonic() + ROLL_CALL_S
        while len(here) < self.size and time.monotonic() < end:
            status = self._mpi.Status()
            if not self._roll_call.Iprobe(tag=0, status=status):
                time.sleep(_PAUSE_S)
                continue
            heard = np.empty(1, np.int64)
            self._roll_call.Recv(heard, source=status.Get_source(), tag=0)
            if heard[0] == self._calls:
                here.add(status.Get_source())
        for request in notes:
            request.Cancel() if not request.Test() else None
        return [rank for rank in range(self.size) if rank not in here]

    # --- what ranks exchange
    def _under_way(self, request: Any, call: str, others: Sequence[int] | None = None) -> Wait:
        """Return what waits for a request. Those that began before go on in here: MPICH works inside its calls only."""
        self._roll_call.Iprobe()
        return partial(self._wait, request, call, others)

    def send(self, array: Array, to: int, kind: str = "") -> Wait:
        return self._under_way(self._world.Isend(self._bytes(array), dest=to, tag=self._tag(kind)), "send", [to])

    def recv(self, array: Array, source: int, kind: str = "") -> Wait:
        request, status = self._world.Irecv(self._bytes(array), source=source), self._mpi.Status()
        self._under_way(request, "recv")

        def wait() -> None:
            self._wait(request, "recv", [source], status)
            if (status.Get_tag(), status.Get_count(self._mpi.BYTE)) != (self._tag(kind), array.nbytes):
                raise other_kind(source, kind)

        return wait

    def _tag(self, kind: str) -> int:
        """A tag that differs where shapes or dtypes do: MPI compares neither."""
        tag: int = crc32(kind.encode()) % self._most_tag
        return tag

    def all_reduce(self, outputs: Sequence[Array], inputs: Sequence[Array], op: str) -> Wait:
        how = [self._op(op, given.dtype) for given in inputs]
        if len(outputs) == 1:  # sums of a model over ranks, which are many and small
            return self._under_way(self._world.Iallreduce(inputs[0], outputs[0], op=how[0]), "all_reduce")
        asked = zip(inputs, outputs, how, strict=True)
        requests = [self._world.Iallreduce(given, output, op=one) for given, output, one in asked]
        waits = [self._under_way(request, "all_reduce") for request in requests]

        def wait() -> None:
            for one in waits:
                one()

        return wait

    def all_gather(self, output: Array, array: Array) -> Wait:
        return self._under_way(self._world.Iallgather(self._bytes(array), self._bytes(output)), "all_gather")

    def reduce_scatter(self, output: Array, array: Array, op: str) -> Wait:
        return self._under_way(
            self._world.Ireduce_scatter_block(array, output, op=self._op(op, array.dtype)), "reduce_scatter"
        )

    def broadcast(self, array: Array, root: int) -> Wait:
        return self._under_way(self._world.Ibcast(self._bytes(array), root=root), "broadcast")

    def barrier(self) -> Wait:
        return self._under_way(self._world.Ibarrier(), "barrier")

    def are_equal(self, number: int, call: str) -> Callable[[], bool]:
        most = np.empty(2, np.int64)
        request = self._world.Iallreduce(np.array([number, -number], np.int64), most, op=self._mpi.MAX)

        def wait() -> bool:
            self._wait(request, call)
            return bool(most[0] == -most[1])

        return wait

    def announce(self, value: Any) -> None:
        data = pickle.dumps(value)
        head = np.zeros(_HEAD_BYTES, np.uint8)
        head[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
        fits = len(data) <= _HEAD_BYTES - 8
        if fits:
            head[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)
        self._wait(self._announcements.Ibcast(head, root=0), "announce")
        if not fits:
            self._wait(self._announcements.Ibcast(np.frombuffer(data, np.uint8).copy(), root=0), "announce")

    def announced(self) -> Any:
        head = np.empty(_HEAD_BYTES, np.uint8)
        self._wait_for_ever(self._announcements.Ibcast(head, root=0))
        size = int.from_bytes(head[:8].tobytes(), "little")
        if size <= _HEAD_BYTES - 8:
            return pickle.loads(head[8 : 8 + size].tobytes())
        data = np.empty(size, np.uint8)
        self._wait(self._announcements.Ibcast(data, root=0), "announced")
        return pickle.loads(data.tobytes())

    def all_objects(self, value: Any) -> list[Any]:
        data = pickle.dumps(value)
        sizes = np.empty(self.size, np.int64)
        self._wait(self._objects.Iallgather(np.array([len(data)], np.int64), sizes), "agree")
        mine, found = np.zeros(sizes.max(), np.uint8), np.empty((self.size, sizes.max()), np.uint8)
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        self._wait(self._objects.Iallgather(mine, found), "agree")
        return [pickle.loads(one[:size].tobytes()) for one, size in zip(found, sizes, strict=True)]

    def _op(self, op: str, dtype: Any) -> Any:
        """MPI's operation; where it knows no NaN, NumPy's: each rank would have another result."""
        if op not in ("max", "min") or dtype.kind != "f":
            return getattr(self._mpi, op.upper())
        if (op, dtype.str) not in self._ops:

            def combine(given: Any, result: Any, _: Any) -> None:
                into = np.frombuffer(result, dtype)
                into[...] = REDUCTIONS[op](into, np.frombuffer(given, dtype))

            self._ops[op, dtype.str] = self._mpi.Op.Create(combine, commute=True)
        return self._ops[op, dtype.str]

    @staticmethod
    def _bytes(array: Array) -> Array:
        """The same memory as bytes: MPI has no name for each dtype, and none is needed where nothing is computed."""
        return array.reshape(-1).view(np.uint8)
