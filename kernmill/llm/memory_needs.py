"""How much memory a model needs, where it does not fit."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from kernmill import FormatError
from kernmill.ir import KernmillError, OutOfMemoryError
from kernmill.runtime import device_list

from . import folders
from .arch import Cache, kept_by
from .arch.cache import CacheTypes
from .model_file import config_of
from .opening import DEFAULT_CAPACITY
from .split import ModelTooLargeError

__all__ = ["needing_memory"]


@contextmanager
def needing_memory(
    path: str | os.PathLike[str], capacity: int | None = None, cache_type: CacheTypes = "f32"
) -> Generator[None]:
    """Replace out-of-memory errors by a message with the memory that the model needs."""
    try:
        yield
    except ModelTooLargeError:  # it says what there is
        raise
    except (FormatError, MemoryError) as error:
        if isinstance(error, FormatError) and getattr(error.__context__, "errno", None) != errno.ENOMEM:
            raise
        if isinstance(error, OutOfMemoryError) and len(device_list()) > 1:  # it has a line for each device
            raise OutOfMemoryError(f"{os.fspath(path)}: {error}") from error
        size, context = folders.size_bytes(path) / 2**20, _context_size(path, capacity, cache_type)
        raise OutOfMemoryError(
            f"{os.fspath(path)}: out of memory: this model does not fit. Its weights take about as much as the "
            f"file, {size:.0f} MiB, and its context {context}. Choose a file of fewer bits, or a smaller context: "
            "-c N, --cache-type q8_0."
        ) from error


def _context_size(path: str | os.PathLike[str], capacity: int | None, cache_type: CacheTypes) -> str:
    try:
        config = config_of(folders.read_any(path).metadata)
    except KernmillError:  # not even its head can be read
        return "takes additional memory"
    capacity = capacity or min(config.context, DEFAULT_CAPACITY)
    return f"of {capacity} tokens {Cache.nbytes(kept_by(config), capacity, 1, cache_type) / 2**20:.0f} MiB"
