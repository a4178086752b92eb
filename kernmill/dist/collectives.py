"""Collectives on tensors: each realizes its tensors, exchanges their memory with the other ranks, and returns new ones.

In a captured function a collective is a step of the replay, between launches. All ranks make the same calls in the same
order with the same shapes and dtypes; a difference is an error on all ranks, before anything is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from kernmill.ir import DType, DTypeError, GradientError, ShapeError, dtypes, np, show_shape
from kernmill.runtime import Buffer, allocate_buffer, buffer_node, run_on_host

from ..captures.ownership import stored
from ..tensor import Tensor
from .communicator import REDUCTIONS, Communicator, DistError
from .job import agree, communicator

__all__ = ["all_gather", "all_reduce", "barrier", "broadcast", "buffer_of_tensor", "recv", "reduce_scatter", "send"]

OPS = (*REDUCTIONS, "mean")


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
    _agree(ranks, "all_reduce", wide, op)
    reducer = "sum" if op == "mean" else op
    results = _exchanged(wide, [t.shape for t in wide], lambda out, given: ranks.all_reduce(out, given, reducer))
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
    _agree(ranks, "all_gather", [tensor], "")
    shape = (ranks.size * tensor.shape[0], *tensor.shape[1:])
    return _exchanged([_given("all_gather", tensor)], [shape], lambda out, given: ranks.all_gather(out[0], given[0]))[0]


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
    _agree(ranks, "reduce_scatter", [wide], op)
    shape, reducer = (tensor.shape[0] // ranks.size, *tensor.shape[1:]), "sum" if op == "mean" else op
    (result,) = _exchanged([wide], [shape], lambda out, given: ranks.reduce_scatter(out[0], given[0], reducer))
    return (result / ranks.size if op == "mean" else result).cast(tensor.dtype)


def broadcast(tensor: Tensor, root: int = 0) -> Tensor:
    """The tensor of rank `root`, on all ranks. The others give one of the same shape and dtype.

    Raises:
        DistError: a rank gave another shape or dtype, or did not answer.
    """
    ranks = communicator()
    _checked_rank("broadcast", "root", root, ranks)
    _agree(ranks, "broadcast", [tensor], str(root))

    def exchange(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        outputs[0][...] = inputs[0]
        ranks.broadcast(outputs[0], root)

    return _exchanged([_given("broadcast", tensor)], [tensor.shape], exchange)[0]


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
    target = allocate_buffer(like.device, like.dtype, like.numel())
    run_on_host(lambda out, _: ranks.recv(out[0], source), [target], [])
    return Tensor._make(buffer_node(target, like.shape), like.device)


def barrier() -> None:
    """Return when all ranks have called this."""
    communicator().barrier()


def _exchanged(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], function: Callable[..., None]) -> list[Tensor]:
    """Call `function(outputs, inputs)` on the memory of the tensors, now and in replays; new tensors of `shapes`."""
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


def _agree(ranks: Communicator, call: str, tensors: Sequence[Tensor], option: str) -> None:
    """Compare the call over all ranks by a digest: MPI would write over the end of memory where sizes differ."""
    if ranks.size == 1:
        return
    text = f"{call} {option} " + ", ".join(f"{t.dtype.name}{show_shape(t.uop.shape)}" for t in tensors)
    mine = np.array([crc32(text.encode()), -crc32(text.encode())], np.int64)
    most = np.empty_like(mine)
    ranks.all_reduce([most], [mine], "max")
    if most[0] != -most[1]:
        agree("what they exchange", text, ranks)


def _checked_op(call: str, op: str) -> str:
    if op not in OPS:
        raise DistError(f"{call}: op={op!r}. Give one of {', '.join(OPS)}.")
    return op


def _checked_rank(call: str, name: str, rank: int, ranks: Communicator) -> None:
    if not 0 <= rank < ranks.size:
        raise DistError(f"{call}: {name}={rank}. There are {ranks.size} ranks, from 0 to {ranks.size - 1}.")
