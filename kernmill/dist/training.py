"""Data parallel training: every rank has the whole model and its part of the data; gradients are averaged."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from zlib import crc32

from kernmill.ir import ShapeError, np
from kernmill.runtime import run_on_host

from ..lazy import no_grad
from ..nn.module import Module, pending_updates
from ..nn.optim import Optimizer
from ..autograd import NewGrads
from ..tensor import Tensor
from .collectives import all_reduce, broadcast, buffer_of_tensor, must_agree
from .communicator import DistError
from .job import communicator

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

    def __call__(self, root: Tensor, found: NewGrads) -> NewGrads:
        """Average new gradients over all ranks."""
        for key, (_, grad) in found.items():
            self._local[key] = self._local[key] + grad if key in self._local else grad
        if _is_off.get():
            return {}
        here, self._local = self._local, {}
        wanted = self._wanted(here)
        grads = [
            here[id(p)] if id(p) in here else Tensor.zeros(*p.shape, dtype=p.dtype, device=p.device) for p in wanted
        ]
        if not grads:
            return {}
        # the loss and running statistics with them: they share the work of the forward pass
        root.realize(*grads, *pending_updates())
        averaged = all_reduce(*grads, op="mean")
        run_on_host(self._compare, [], [buffer_of_tensor(parameter) for parameter in self._parameters])
        return {id(p): (p, grad) for p, grad in zip(wanted, averaged if len(wanted) > 1 else [averaged], strict=True)}

    def _wanted(self, here: Mapping[int, Tensor]) -> list[Tensor]:
        """The parameters with a gradient on some rank: all ranks exchange the same ones."""
        must_agree(f"backward of {len(self._parameters)} parameters")
        mine = np.array([id(p) in here for p in self._parameters], np.uint8)
        union = np.empty_like(mine)
        communicator().all_reduce([union], [mine], "max")
        return [p for p, is_wanted in zip(self._parameters, union, strict=True) if is_wanted]

    def _compare(self, _: Sequence[Any], values: Sequence[Any]) -> None:
        self._count += 1
        if self._count % self._every:
            return
        digest = 0
        for value in values:
            digest = crc32(value, digest)
        if not communicator().are_equal(digest, "data_parallel"):
            raise DistError(
                f"data_parallel: after {self._count} steps the parameters of the ranks differ. Change them by the "
                "optimizer only, or on all ranks alike, and use the same random numbers for them."
            )
