"""class DataLoader: batches of examples as tensors, in a drawn order, loaded by threads ahead of their use.

Threads load items and stack them as NumPy arrays; the thread that iterates makes the tensors. Batches come in the order
that the seed gives, whatever thread is first.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernmill.ir import KernmillError, SettingError, ShapeError

from .. import dist
from ..arguments import is_whole, with_sentences_at_init
from ..tensor import Tensor

__all__ = ["DataLoader"]

_PATIENCE_S = 0.2


class DataLoader:
    """Batches of a dataset: `for images, labels in DataLoader((x, y), 64, shuffle=True):`.

    `dataset`: an array or a tensor; a tuple, list or dict of arrays with one first axis; or anything with `len()` and
    items, such as `Folder`. Items may be numbers, arrays, tensors, and tuples or dicts of them, which are stacked.

    With `shuffle` each pass has another order, which `seed` and the number of the pass decide. `workers` threads load
    up to `prefetch` batches each in advance; with 0 the loop loads them itself. `collate` makes a batch of a list of
    items. In a job of several ranks each gets its share of each pass, and as many batches as all others; `share`, a
    pair (rank, size), does that without a job.

    Raises:
        SettingError: a number that is out of range.
        ShapeError: arrays of different lengths.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, seed: int = 0,
                 drop_last: bool = False, workers: int = 0, prefetch: int = 2,
                 collate: Callable[[list[Any]], Any] | None = None,
                 share: tuple[int, int] | None = None) -> None:  # fmt: skip
        for word, number, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("prefetch", prefetch, 1)):
            if not is_whole(number, least):
                raise SettingError(f"DataLoader: {word}={number!r}. Give an integer, {least} or more.")
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.drop_last, self.workers, self.prefetch, self.collate = drop_last, workers, prefetch, collate
        self.share = (dist.rank(), dist.size()) if share is None else share
        self.epoch = 0
        """The number of the next pass; set it to continue a training with the order that it would have had."""
        self._arrays = _arrays_of(dataset)
        self._count = _count_examples(self._arrays, dataset)

    def __len__(self) -> int:
        count = self._count // self.share[1] if self.share[1] > 1 else self._count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        self.epoch += 1
        if not self.workers:
            return (_as_tensors(self._load_batch(batch)) for batch in batches)
        return self._ahead(batches)

    def _batches(self) -> list[np.ndarray[Any, Any]]:
        """The indices of each batch of this rank."""
        order = np.arange(self._count)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(self._count)
        rank, size = self.share
        if size > 1:
            order = order[: self._count // size * size][rank::size]
        starts = range(0, len(order), self.batch_size)
        batches = [order[start : start + self.batch_size] for start in starts]
        return [batch for batch in batches if len(batch) == self.batch_size] if self.drop_last else batches

    def _load_batch(self, batch: np.ndarray[Any, Any]) -> Any:
        """A batch as NumPy arrays."""
        if self._arrays is not None and self.collate is None:
            return _map_parts(self._arrays, lambda array: array[batch])
        items: list[Any] = []

        def item(index: int) -> Any:
            return self.dataset[index] if self._arrays is None else _map_parts(self._arrays, lambda a: a[index])

        for index in batch.tolist():
            try:
                items.append(item(index))
            except Exception as error:
                raise _loading_error(f"item {index} of the dataset", error) from error
        try:
            return _stack_items(items) if self.collate is None else self.collate(items)
        except KernmillError:
            raise
        except Exception as error:
            raise _loading_error(f"a batch of {len(items)} items", error) from error

    def _ahead(self, batches: Sequence[np.ndarray[Any, Any]]) -> Iterator[Any]:
        """Batches that threads load. They end when the loop does, also where it breaks or fails."""
        tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        waiting: deque[_LoadedBatch] = deque()
        left = iter(batches)

        def add() -> None:
            batch = next(left, None)
            if batch is not None:
                waiting.append(_LoadedBatch(batch))
                tasks.put(waiting[-1])

        for _ in range(self.workers):
            threading.Thread(target=self._load_in_thread, args=(tasks,), name="DataLoader", daemon=True).start()
        try:
            for _ in range(self.workers * self.prefetch):
                add()
            while waiting:
                slot = waiting.popleft()
                while not slot.ready.wait(_PATIENCE_S):  # Ctrl-C comes in between
                    pass
                if slot.error is not None:
                    raise slot.error
                add()
                yield _as_tensors(slot.value)
        finally:
            for slot in waiting:
                slot.is_dropped = True
            for _ in range(self.workers):
                tasks.put(None)

    def _load_in_thread(self, tasks: queue.SimpleQueue[Any]) -> None:
        while (slot := tasks.get()) is not None:
            try:
                slot.value = None if slot.is_dropped else self._load_batch(slot.batch)
            except BaseException as error:
                slot.error = error
            slot.ready.set()


with_sentences_at_init(DataLoader)


class _LoadedBatch:
    """A batch that a thread loads."""

    def __init__(self, batch: np.ndarray[Any, Any]) -> None:
        self.batch, self.ready, self.is_dropped = batch, threading.Event(), False
        self.value: Any = None
        self.error: BaseException | None = None


def _loading_error(what: str, error: Exception) -> KernmillError:
    return KernmillError(f"DataLoader: {what} could not be loaded: {type(error).__name__}: {error}")


def _arrays_of(dataset: Any) -> Any:
    """The dataset as NumPy arrays, in its form; None if it gives items instead."""
    if isinstance(dataset, (Tensor, np.ndarray)):
        return np.asarray(dataset)
    if isinstance(dataset, Mapping) and dataset:
        parts = {key: _arrays_of(part) for key, part in dataset.items()}
        return None if any(part is None for part in parts.values()) else parts
    if isinstance(dataset, (tuple, list)) and dataset and all(isinstance(p, (Tensor, np.ndarray)) for p in dataset):
        return tuple(np.asarray(part) for part in dataset)
    return None


def _count_examples(arrays: Any, dataset: Any) -> int:
    if arrays is None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise SettingError(
                f"DataLoader: a {type(dataset).__name__} has no length or no items. Give arrays, or an object with "
                "__len__ and __getitem__."
            )
        return len(dataset)
    found = [*(arrays.values() if isinstance(arrays, dict) else arrays if isinstance(arrays, tuple) else [arrays])]
    lengths = {len(array) if array.ndim else 0 for array in found}
    if len(lengths) > 1:
        raise ShapeError(f"DataLoader: arrays of lengths {', '.join(map(str, sorted(lengths)))}. Give equal ones.")
    return lengths.pop()


def _map_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map_parts(part, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_map_parts(part, change) for part in value)
    return change(value)


def _stack_items(items: list[Any]) -> Any:
    """Items of one form as arrays with a new first axis; strings stay a list."""
    first = items[0]
    if isinstance(first, dict):
        return {key: _stack_items([item[key] for item in items]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(_stack_items(list(column)) for column in zip(*items, strict=True))
    if isinstance(first, (str, bytes)):
        return items
    arrays = [np.asarray(item) for item in items]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        shown = ", ".join(map(str, sorted(shapes)))
        raise ShapeError(f"DataLoader: items of shapes {shown} in one batch. Make them equal, or give collate=.")
    array = np.stack(arrays)
    is_python = isinstance(first, float) or (isinstance(first, int) and not isinstance(first, bool))
    return array.astype(np.float32 if isinstance(first, float) else np.int64) if is_python else array


def _as_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return Tensor(value)
    if isinstance(value, dict):
        return {key: _as_tensors(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_tensors(part) for part in value)
    return value
