"""Data parallel training: every rank has the whole model and its part of the data; gradients are averaged."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from zlib import crc32

from kernmill.ir import ShapeError, np
from kernmill.runtime import Buffer, current_recording, get_device, read_buffer, run_on_host

from ..autograd import NewGrads
from ..lazy import no_grad
from ..nn.module import Module, pending_updates
from ..nn.optim import Optimizer
from ..tensor import Tensor
from .collectives import all_reduce_groups, broadcast, buffer_of_tensor, must_agree, widened
from .communicator import DistError
from .job import communicator
from .links import bucket_bytes, slowest_link

__all__ = ["data_parallel", "no_sync", "share"]

_is_off: ContextVar[bool] = ContextVar("no_sync", default=False)


class Divisible(Protocol):
    """A sequence of rows: a NumPy array, a tensor, a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: slice, /) -> Any: ...


def data_parallel(
    model: Module | Sequence[Tensor], optimizer: Optimizer, *data: Divisible, check_every: int = 100
) -> Any:
    """Train one model on all ranks: call it after the model and the optimizer are made, on every rank.

    The parameters, the model's other tensors and the optimizer's state become those of rank 0. From then on
    `loss.backward()` averages gradients over all ranks. A step is that of one rank with the whole batch, if each rank's
    loss is the mean over equal parts. Random numbers are the same on all ranks. Every `check_every` steps the
    ranks compare a checksum of their parameters.

    `model` is a module, or the list of its tensors. `data`: arrays; each rank's part of them is returned (`share`).

    Raises:
        DistError: parameters became different.
        ShapeError: the rows of an array cannot be divided.
    """
    ranks = communicator()
    parts = [share(rows) for rows in data]
    if ranks.size > 1:
        owners: list[Module | Optimizer] = [model, optimizer] if isinstance(model, Module) else [optimizer]
        for owner in owners:
            owner.load_state_dict({name: broadcast(value.detach()) for name, value in owner.state_dict().items()})
        with no_grad():
            for weight in [] if isinstance(model, Module) else model:
                weight.assign(broadcast(weight.detach())).realize()
        for device in dict.fromkeys(parameter.device for parameter in optimizer.parameters):
            Tensor.set_random_state(broadcast(Tensor.random_state(device=device)), device=device)
        averaging = _Averaging(optimizer.parameters, check_every)
        for parameter in optimizer.parameters:
            parameter._after_backward = averaging
    return parts[0] if len(parts) == 1 else parts


def share(rows: Divisible) -> Any:
    """The rows of this rank: every `size`th one from `rank` on, so that equal positions of all ranks are neighbours.

    Raises:
        ShapeError: the number of rows cannot be divided by the number of ranks.
    """
    ranks = communicator()
    if len(rows) % ranks.size:
        whole = len(rows) - len(rows) % ranks.size
        raise ShapeError(
            f"share: {len(rows)} rows over {ranks.size} ranks. Give each rank as many, for example with rows[:{whole}]."
        )
    return rows[ranks.rank :: ranks.size]


@contextmanager
def no_sync() -> Generator[None]:
    """Accumulate gradients without averaging them: for all backward() of a step but the last one.

    The last one averages what was accumulated as well.
    """
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


class _Averaging:
    """Called by `backward` with the new gradients of the parameters."""

    def __init__(self, parameters: Sequence[Tensor], check_every: int) -> None:
        self._parameters = list(parameters)
        self._every = check_every
        self._count = 0
        self._local: dict[int, Tensor] = {}  # accumulated on this rank alone, by parameter
        self._link = slowest_link()

    def __call__(self, root: Tensor, found: NewGrads) -> NewGrads:
        """Average new gradients over all ranks."""
        for key, (_, grad) in found.items():
            self._local[key] = self._local[key] + grad if key in self._local else grad
        if _is_off.get():
            return {}
        here, self._local = self._local, {}
        wanted = self._wanted(here)
        if not wanted:
            return {}
        grads = [
            here[id(p)] if id(p) in here else Tensor.zeros(*p.shape, dtype=p.dtype, device=p.device) for p in wanted
        ]
        wide = [widened("backward", grad) for grad in grads]
        # the loss and running statistics with them: they share the work of the forward pass
        root.realize(*wide, *pending_updates())
        buckets = self._buckets(wide)
        averaged = all_reduce_groups([[wide[n] for n in bucket] for bucket in buckets], "mean")
        run_on_host(self._compare, [], [buffer_of_tensor(p) for p in self._parameters], on_buffers=True)
        return {
            id(wanted[n]): (wanted[n], grad.cast(wanted[n].dtype))
            for bucket, group in zip(buckets, averaged, strict=True) for n, grad in zip(bucket, group, strict=True)
        }  # fmt: skip

    def _wanted(self, here: Mapping[int, Tensor]) -> list[Tensor]:
        """The parameters with a gradient on some rank: all ranks exchange the same ones."""
        must_agree(f"backward of {len(self._parameters)} parameters")
        mine = np.array([id(p) in here for p in self._parameters], np.uint8)
        union = np.empty_like(mine)
        communicator().all_reduce([union], [mine], "max")()
        return [p for p, is_wanted in zip(self._parameters, union, strict=True) if is_wanted]

    def _buckets(self, grads: Sequence[Tensor]) -> list[list[int]]:
        """Gradients that are exchanged together, by number: one bucket, or in a recording several. These are in the
        order in which rank 0 writes them, so that the first ones are exchanged while the others are computed."""
        if (record := current_recording()) is None:
            return [[*range(len(grads))]]
        written = {id(buffer): at for at, (_, outputs) in enumerate(record.uses()) for buffer in outputs}
        mine = sorted(range(len(grads)), key=lambda n: written.get(id(buffer_of_tensor(grads[n])), -1))
        order: list[int] = communicator().all_objects(mine)[0]
        sizes = [grad.nbytes for grad in grads]
        least, buckets = bucket_bytes(sum(sizes), self._link), list[list[int]]()
        for n in order:
            if not buckets or sum(sizes[m] for m in buckets[-1]) >= least:
                buckets.append([])
            buckets[-1].append(n)
        return buckets

    def _compare(self, _: Sequence[Buffer], parameters: Sequence[Buffer]) -> None:
        self._count += 1
        if self._count % self._every:
            return
        digest = 0
        for parameter in parameters:
            digest = crc32(read_buffer(get_device(parameter.device), parameter), digest)
        if not communicator().are_equal(digest, "data_parallel")():
            raise DistError(
                f"data_parallel: after {self._count} steps the parameters of the ranks differ. Change them by the "
                "optimizer only, or on all ranks alike, and use the same random numbers for them."
            )
