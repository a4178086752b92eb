"""Collectives on tensors: each realizes its tensors, exchanges their memory with the other ranks, and returns new ones.

In a captured function a collective is a step of the replay, between launches. All ranks make the same calls in the same
order with the same shapes and dtypes; a difference is an error on all ranks, before anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from zlib import crc32

from kernmill.ir import DType, DTypeError, GradientError, ShapeError, dtypes, np, show_shape
from kernmill.runtime import Buffer, HostCall, allocate_buffer, buffer_node, current_recording, run_on_host

from ..captures.ownership import stored
from ..tensor import Tensor
from .communicator import REDUCTIONS, Communicator, DistError
from .job import agree, communicator

__all__ = [
    "all_gather", "all_reduce", "barrier", "broadcast", "buffer_of_tensor", "must_agree", "recv", "reduce_scatter",
    "send",
]  # fmt: skip

OPS = (*REDUCTIONS, "mean")
Exchange: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], None]


def all_reduce(*tensors: Tensor, op: str = "sum") -> Any:
    """Combine equal tensors of all ranks element by element; each rank receives the result.

    `op`: sum, mean, prod, max or min. float16 and bfloat16 are combined in float32. One tensor gives a tensor, several
    give a list, all exchanged in one call.

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
        DTypeError: bool.
        GradientError: a tensor that requires a gradient.
    """
    ranks, op = communicator(), _checked_op("all_reduce", op)
    wide = [_wide("all_reduce", tensor) for tensor in tensors]
    reducer = "sum" if op == "mean" else op
    shapes = [t.shape for t in wide]
    results = _collective(f"all_reduce {op}", wide, shapes, lambda out, of: ranks.all_reduce(out, of, reducer))
    if op == "mean":
        results = [result / ranks.size for result in results]
    results = [result.cast(t.dtype) for result, t in zip(results, tensors, strict=True)]
    return results[0] if len(results) == 1 else results


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
    return _collective("all_gather", [given], [shape], lambda out, of: ranks.all_gather(out[0], of[0]))[0]


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
    wide = _wide("reduce_scatter", tensor)
    shape, reducer = (tensor.shape[0] // ranks.size, *tensor.shape[1:]), "sum" if op == "mean" else op
    (result,) = _collective(
        f"reduce_scatter {op}", [wide], [shape], lambda out, of: ranks.reduce_scatter(out[0], of[0], reducer)
    )
    return (result / ranks.size if op == "mean" else result).cast(tensor.dtype)


def broadcast(tensor: Tensor, root: int = 0) -> Tensor:
    """The tensor of rank `root`, on all ranks. The others give one of the same shape and dtype.

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
    """
    ranks = communicator()
    _checked_rank("broadcast", "root", root, ranks)

    def exchange(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        outputs[0][...] = inputs[0]
        ranks.broadcast(outputs[0], root)

    return _collective(f"broadcast {root}", [_given("broadcast", tensor)], [tensor.shape], exchange)[0]


def send(tensor: Tensor, to: int) -> None:
    """Send a tensor to one rank, which calls `recv`.

    Raises:
        DistError: that rank did not receive it within COMM_TIMEOUT.
    """
    ranks = communicator()
    _checked_rank("send", "to", to, ranks)
    _exchanged([_given("send", tensor)], [], lambda _, given: ranks.send(given[0], to))


def recv(like: Tensor, source: int) -> Tensor:
    """A tensor that rank `source` sends, of the shape, dtype and device of `like`, whose values do not matter.

    Raises:
        DistError: that rank sent nothing within COMM_TIMEOUT.
    """
    ranks = communicator()
    _checked_rank("recv", "source", source, ranks)
    _check_capture()
    target = allocate_buffer(like.device, like.dtype, like.numel())
    run_on_host(lambda out, _: ranks.recv(out[0], source), [target], [])
    return Tensor._make(buffer_node(target, like.shape), like.device)


def barrier() -> None:
    """Return when all ranks have called this."""
    ranks = communicator()
    _collective("barrier", [], [], lambda _outputs, _inputs: ranks.barrier())


class _Collective:
    """A collective on memory, now and in replays. `text` is what all ranks must do, with shapes and dtypes.

    MPI would write over the end of memory where they differ. The first collective of a replay compares all of it.
    """

    def __init__(self, text: str, function: Exchange) -> None:
        steps = [] if (record := current_recording()) is None else record.steps
        earlier = (step.function for step in steps if isinstance(step, HostCall))
        first = next((found for found in earlier if isinstance(found, _Collective)), None)
        self._texts: list[str] = [] if first is None else first._texts
        self._texts.append(text)
        self._is_first, self._is_compared, self._function = first is None, True, function
        must_agree(text)

    def __call__(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        if self._is_first and not self._is_compared:
            must_agree("; ".join(self._texts))
        self._is_compared = False  # in the next replay, other ranks may do something else
        self._function(outputs, inputs)


def _collective(
    call: str, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], function: Exchange
) -> list[Tensor]:
    """`_exchanged`, with all ranks."""
    _check_capture()
    given = ", ".join(f"{t.dtype.name}{show_shape(t.uop.shape)}" for t in tensors)
    return _exchanged(tensors, shapes, _Collective(f"{call} {given}", function))


def _exchanged(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], function: Exchange) -> list[Tensor]:
    """Call `function(outputs, inputs)` on the memory of the tensors, now and in replays; new tensors of `shapes`."""
    _check_capture()
    if tensors:
        tensors[0].realize(*tensors[1:])
    sources = [buffer_of_tensor(tensor) for tensor in tensors]
    targets = [
        allocate_buffer(tensor.device, tensor.dtype, int(np.prod(shape, dtype=np.int64)))
        for tensor, shape in zip(tensors, shapes, strict=False)
    ]
    run_on_host(function, targets, sources)
    return [
        Tensor._make(buffer_node(target, shape), target.device) for target, shape in zip(targets, shapes, strict=True)
    ]


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
    if tensor.requires_grad:
        raise GradientError(
            f"{call}: the tensor requires a gradient, and none flows through {call}. Write x.detach(), or give the "
            "gradients to all_reduce."
        )
    return tensor


def _wide(call: str, tensor: Tensor) -> Tensor:
    """The tensor in a dtype that MPI can add."""
    if tensor.dtype is dtypes.bool:
        raise DTypeError(f"{call}: bool. Cast it first, for example with x.int(); all is op='min', any is op='max'.")
    narrow: tuple[DType, ...] = (dtypes.float16, dtypes.bfloat16)
    return _given(call, tensor).float() if tensor.dtype in narrow else _given(call, tensor)


def must_agree(text: str) -> None:
    """Compare by a digest what all ranks are about to do.

    Raises:
        DistError: they differ.
    """
    ranks = communicator()
    if not ranks.are_equal(crc32(text.encode()), text.partition(" ")[0]):
        agree("what they exchange", text, ranks)


def _checked_op(call: str, op: str) -> str:
    if op not in OPS:
        raise DistError(f"{call}: op={op!r}. Give one of {', '.join(OPS)}.")
    return op


def _checked_rank(call: str, name: str, rank: int, ranks: Communicator) -> None:
    if not 0 <= rank < ranks.size:
        raise DistError(f"{call}: {name}={rank}. There are {ranks.size} ranks, from 0 to {ranks.size - 1}.")
