"""Collectives on tensors: each realizes its tensors, exchanges their memory with the other ranks, and returns new ones.

In a captured function a collective goes on while kernels run. A replay begins it after those that write what it reads,
and waits before the first one that reads its results. All ranks make the same calls in the same order with the same
shapes and dtypes; a difference is an error on all ranks, before anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from kernmill.ir import DType, DTypeError, GradientError, ShapeError, dtypes, np, show_shape
from kernmill.runtime import (
    BEGIN,
    Buffer,
    Exchange,
    HostCall,
    allocate_buffer,
    buffer_node,
    current_recording,
    run_exchanges,
    run_on_host,
)

from ..captures.ownership import stored
from ..tensor import Tensor
from .communicator import REDUCTIONS, SAME_CALLS, Communicator, DistError, Wait
from .job import agree, communicator

__all__ = [
    "all_gather", "all_reduce", "all_reduce_groups", "barrier", "broadcast", "buffer_of_tensor", "must_agree", "recv",
    "reduce_scatter", "send", "widened",
]  # fmt: skip

OPS = (*REDUCTIONS, "mean")
Begin: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Wait]


def all_reduce(*tensors: Tensor, op: str = "sum") -> Any:
    """Combine equal tensors of all ranks element by element; each rank receives the result.

    `op`: sum, mean, prod, max or min. float16 and bfloat16 are combined in float32. One tensor gives a tensor, several
    give a list, all exchanged in one call.

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
        DTypeError: bool.
        GradientError: a tensor that requires a gradient.
    """
    results = all_reduce_groups([tensors], op)[0]
    return results[0] if len(results) == 1 else results


def all_reduce_groups(groups: Sequence[Sequence[Tensor]], op: str) -> list[list[Tensor]]:
    """`all_reduce` of several groups of tensors, each in an exchange of its own; all are under way at the same time."""
    ranks, op = communicator(), _checked_op("all_reduce", op)
    wide = [[widened("all_reduce", tensor) for tensor in group] for group in groups]
    reducer = "sum" if op == "mean" else op
    asked = [
        _Asked(f"all_reduce {op}", group, [t.shape for t in group], lambda out, of: ranks.all_reduce(out, of, reducer))
        for group in wide
    ]
    results = _collectives(asked)
    if op == "mean":
        results = [[result / ranks.size for result in group] for group in results]
    return [
        [result.cast(t.dtype) for result, t in zip(found, group, strict=True)]
        for found, group in zip(results, groups, strict=True)
    ]


def all_gather(tensor: Tensor) -> Tensor:
    """The tensors of all ranks, joined along axis 0 by rank: of shape (n, ..) each, the result is (size * n, ..).

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
        ShapeError: a tensor without axes.
    """
    ranks = communicator()
    if not tensor.ndim:
        raise ShapeError("all_gather: a tensor without axes has no axis 0 to join along. Write x.reshape(1).")
    given, shape = _given("all_gather", tensor), (ranks.size * tensor.shape[0], *tensor.shape[1:])
    asked = _Asked("all_gather", [given], [shape], lambda out, of: ranks.all_gather(out[0], of[0]))
    return _collectives([asked])[0][0]


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    """Combine equal tensors of all ranks; each rank receives its part along axis 0, of shape (n / size, ..).

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
        ShapeError: axis 0 cannot be divided by the number of ranks.
    """
    ranks, op = communicator(), _checked_op("reduce_scatter", op)
    if not tensor.ndim or tensor.shape[0] % ranks.size:
        raise ShapeError(
            f"reduce_scatter: shape {show_shape(tensor.uop.shape)} over {ranks.size} ranks. Give an axis 0 that "
            f"{ranks.size} divides."
        )
    wide = widened("reduce_scatter", tensor)
    shape, reducer = (tensor.shape[0] // ranks.size, *tensor.shape[1:]), "sum" if op == "mean" else op
    asked = _Asked(
        f"reduce_scatter {op}", [wide], [shape], lambda out, of: ranks.reduce_scatter(out[0], of[0], reducer)
    )
    ((result,),) = _collectives([asked])
    return (result / ranks.size if op == "mean" else result).cast(tensor.dtype)


def broadcast(tensor: Tensor, root: int = 0) -> Tensor:
    """The tensor of rank `root`, on all ranks. The others give one of the same shape and dtype.

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
    """
    ranks = communicator()
    _checked_rank("broadcast", "root", root, ranks)

    def begin(outputs: Sequence[Any], inputs: Sequence[Any]) -> Wait:
        outputs[0][...] = inputs[0]
        return ranks.broadcast(outputs[0], root)

    asked = _Asked(f"broadcast {root}", [_given("broadcast", tensor)], [tensor.shape], begin)
    return _collectives([asked])[0][0]


def send(tensor: Tensor, to: int) -> None:
    """Send a tensor to one rank, which calls `recv`.

    Raises:
        DistError: that rank did not receive it within COMM_TIMEOUT, or it is this rank.
    """
    ranks = communicator()
    _checked_rank("send", "to", to, ranks)
    _check_capture()
    given, kind = _given("send", tensor).realize(), _described(tensor)
    _carry_out([_UnderWay(lambda _, of: ranks.send(of[0], to, kind))], [((), (buffer_of_tensor(given),))])


def recv(like: Tensor, source: int) -> Tensor:
    """A tensor that rank `source` sends, of the shape, dtype and device of `like`, whose values do not matter.

    Raises:
        DistError: that rank sent nothing within COMM_TIMEOUT, or another shape or dtype; or it is this rank.
    """
    ranks = communicator()
    _checked_rank("recv", "source", source, ranks)
    _check_capture()
    target, kind = allocate_buffer(like.device, like.dtype, like.numel()), _described(like)
    _carry_out([_UnderWay(lambda out, _: ranks.recv(out[0], source, kind))], [((target,), ())])
    return Tensor._make(buffer_node(target, like.shape), like.device)


def barrier() -> None:
    """Return when all ranks have called this."""
    ranks = communicator()
    _check_capture()
    must_agree("barrier")
    run_on_host(lambda _outputs, _inputs: ranks.barrier()(), [], [])


class _Asked(NamedTuple):
    """A collective: what it is called, its tensors, the shapes of its results, and what begins it."""

    call: str
    tensors: Sequence[Tensor]
    shapes: Sequence[tuple[int, ...]]
    begin: Begin


class _UnderWay:
    """An exchange on memory, now and in replays."""

    def __init__(self, function: Begin) -> None:
        self._function = function
        self._now: tuple[Wait, Sequence[Any], Sequence[Any]] | None = None

    def begin(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Begin it. One that a failed replay has left is waited for first, as on the other ranks."""
        if self._now is not None:
            self._now[0]()
        self._now = self._function(outputs, inputs), outputs, inputs

    def end(self, outputs: Sequence[Any], _: Sequence[Any]) -> None:
        """Wait for its end; its arrays are copies on a device that the host cannot see."""
        assert self._now is not None
        (wait, begun, _), self._now = self._now, None
        wait()
        for output, array in zip(outputs, begun, strict=True):
            if output is not array and not np.may_share_memory(output, array):
                output[...] = array


class _Agreement:
    """The collectives of a replay, with shapes and dtypes: MPI would write over the end of memory where ranks differ.
    The comparison begins with the replay, and is over when the first exchange begins."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._wait: Callable[[], bool] | None = None

    def begin(self, _outputs: Sequence[Any], _inputs: Sequence[Any]) -> None:
        """Begin a replay."""
        self._wait = communicator().are_equal(_digest("; ".join(self.texts)), self.texts[0].partition(" ")[0])

    def end(self) -> None:
        """Raises DistError where ranks differ."""
        wait, self._wait = self._wait, None
        if wait is not None and not wait():
            _disagree("; ".join(self.texts), communicator())

    def before(self, function: Begin) -> Begin:
        """The function, after the comparison."""

        def begin(outputs: Sequence[Any], inputs: Sequence[Any]) -> Wait:
            self.end()
            return function(outputs, inputs)

        return begin


def _collectives(asked: Sequence[_Asked]) -> list[list[Tensor]]:
    """The results of collectives, all under way at the same time."""
    _check_capture()
    if tensors := [tensor for one in asked for tensor in one.tensors]:
        tensors[0].realize(*tensors[1:])
    memory: list[tuple[tuple[Buffer, ...], tuple[Buffer, ...]]] = []
    for one in asked:
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in one.shapes]
        pairs = zip(one.tensors, sizes, strict=True)
        targets = tuple([allocate_buffer(tensor.device, tensor.dtype, size) for tensor, size in pairs])
        memory.append((targets, tuple(map(buffer_of_tensor, one.tensors))))
    _carry_out([_UnderWay(_agreed(one)) for one in asked], memory)
    return [
        [
            Tensor._make(buffer_node(target, shape), target.device)
            for target, shape in zip(found, one.shapes, strict=True)
        ]
        for (found, _), one in zip(memory, asked, strict=True)
    ]


def _carry_out(exchanges: Sequence[_UnderWay], memory: Sequence[tuple[tuple[Buffer, ...], tuple[Buffer, ...]]]) -> None:
    """Run exchanges on these targets and sources."""
    run_exchanges([Exchange(one.begin, one.end, *parts) for one, parts in zip(exchanges, memory, strict=True)])


def _agreed(asked: _Asked) -> Begin:
    """Return what begins a collective. All ranks compare it now, and with the others of a recording in its replays."""
    given = ", ".join(map(_described, asked.tensors))
    must_agree(text := f"{asked.call} {given}")
    if (record := current_recording()) is None:
        return asked.begin
    owners = [getattr(step.function, "__self__", None) for step in record.steps if isinstance(step, HostCall)]
    known = next((owner for owner in owners if isinstance(owner, _Agreement)), None)
    agreement = known or _Agreement()
    agreement.texts.append(text)
    if known is not None:
        return asked.begin
    record.add_host_call(HostCall(agreement.begin, (), (), role=BEGIN))
    return agreement.before(asked.begin)


def _check_capture() -> None:
    """Ranks that are threads do not capture at the same time, so that one would wait in it for the others for ever.

    Raises:
        DistError: such a rank captures.
    """
    if current_recording() is not None and communicator().are_threads:
        raise DistError(
            "jit: a captured function exchanges tensors with ranks that are threads, and only one thread captures at a "
            "time. Call the function without jit, or make the ranks processes with mpirun."
        )


def buffer_of_tensor(tensor: Tensor) -> Buffer:
    """The memory of a realized tensor; a constant is given one."""
    node = stored(tensor.uop)
    if node is None:
        node = stored(tensor.contiguous().realize().uop)
    assert node is not None
    found: Buffer = node.storage
    return found


def _given(call: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise DTypeError(f"{call}: {type(tensor).__name__} is not a Tensor. Write Tensor(x).")
    if tensor.requires_grad:
        raise GradientError(
            f"{call}: the tensor requires a gradient, and none flows through {call}. Write x.detach(), or give the "
            "gradients to all_reduce."
        )
    return tensor


def widened(call: str, tensor: Tensor) -> Tensor:
    """The tensor in a dtype that MPI can add."""
    if _given(call, tensor).dtype is dtypes.bool:
        raise DTypeError(f"{call}: bool. Cast it first, for example with x.int(); all is op='min', any is op='max'.")
    narrow: tuple[DType, ...] = (dtypes.float16, dtypes.bfloat16)
    return tensor.float() if tensor.dtype in narrow else tensor


def must_agree(text: str) -> None:
    """Compare by a digest what all ranks are about to do.

    Raises:
        DistError: they differ.
    """
    ranks = communicator()
    if not ranks.are_equal(_digest(text), text.partition(" ")[0])():
        _disagree(text, ranks)


def _disagree(text: str, ranks: Communicator) -> None:
    """Raise the error for ranks that are about to do different things."""
    agree("what they exchange", text, ranks, SAME_CALLS)


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype.name}{show_shape(tensor.uop.shape)}"


def _digest(text: str) -> int:
    return crc32(text.encode())


def _checked_op(call: str, op: str) -> str:
    if op not in OPS:
        raise DistError(f"{call}: op={op!r}. Give one of {', '.join(OPS)}.")
    return op


def _checked_rank(call: str, name: str, rank: int, ranks: Communicator) -> None:
    if not isinstance(rank, int) or not 0 <= rank < ranks.size:
        raise DistError(f"{call}: {name}={rank!r}. There are {ranks.size} ranks, from 0 to {ranks.size - 1}.")
    if rank == ranks.rank and name != "root":
        raise DistError(f"{call}: {name}={rank} is this rank itself. It has the tensor: use it, or x.clone().")
