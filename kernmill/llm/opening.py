"""The first steps of `Model.from_gguf`: its file, the part of a rank, the split over devices, and the memory left.

Tests: tests/kernmill/llm/test_generate.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from kernmill import DTypeError, SettingError
from kernmill.runtime import device_list, get_device, room

from .. import dist
from ..arguments import name_call
from ..formats import gguf
from ..formats.gguf_made import MadeFile
from ..quantize import quantized
from . import folders
from .adapters import Given
from .arch import Cache, Config, kept_by
from .model_file import config_in
from .ranks import over_ranks
from .split import Split, SplitOptions, choose_split

__all__ = ["DEFAULT_CAPACITY", "check_memory", "divided", "opened_file"]

DEFAULT_CAPACITY = 4096  # tokens; less where the model was trained on less


def _split_of(file: gguf.GGUFFile, wanted: SplitOptions | None, options: Mapping[str, Any]) -> Split | None:
    """The split of a model over the devices of the setting DEVICE; None: it names one."""
    if len(device_list()) == 1:
        return None
    config = config_in(file)
    cache = _cache_bytes(config, options)
    sizes = {name: entry.stop - entry.start for name, entry in file.entries.items()}
    return choose_split(sizes, config.layers, cache // config.layers, config.width, wanted)


def _cache_bytes(config: Config, options: Mapping[str, Any]) -> int:
    """The bytes of a cache by the options of a model."""
    capacity = options.get("capacity") or options.get("n_ctx") or min(config.context, DEFAULT_CAPACITY)
    return Cache.nbytes(kept_by(config), capacity, options.get("sequences", 1), options.get("cache_type", "f32"))


def opened_file(source: str | os.PathLike[str] | gguf.GGUFFile, mix: str | None = None) -> gguf.GGUFFile:
    """Return the file of a path, which may be the folder of a Hugging Face model; with a mix, its weights in that."""
    try:
        file = source if isinstance(source, gguf.GGUFFile) else folders.read_any(source)
        return file if mix is None else quantized(file, mix)
    except DTypeError as error:
        name_call(error, "Model.from_gguf")
        raise


def divided(
    file: gguf.GGUFFile, wanted: SplitOptions | None, adapters: Given, options: dict[str, Any]
) -> tuple[gguf.GGUFFile, Config, Split | None]:
    """Return the part of a file that this rank reads, its sizes, and how its layers are divided over devices. Of a
    model over ranks, rank 0 has the others load theirs."""
    if wanted is None or not wanted.over_ranks:
        return file, config_in(file), _split_of(file, wanted, options)
    if isinstance(file, MadeFile):
        raise SettingError(
            f"{file.where}: a model over ranks is read from a GGUF file, since each rank reads its part. Write one: "
            "kernmill quantize FOLDER model.gguf F16."
        )
    if dist.rank() == 0:
        shared = {**options, "tokenizer": None, "wanted": wanted, "adapters": adapters}
        dist.communicator().announce(("load", file.paths[0], shared))
    own, config, text = over_ranks(file, wanted, lambda config: _cache_bytes(config, options))
    if dist.rank() == 0:
        print(text, file=sys.stderr)
    return own, config, None


def check_memory(capacity: int, size_bytes: int) -> None:
    """Check before any allocation: a system may promise more memory than it has, and kill processes that use it.

    Raises:
        SettingError: the cache does not fit in the device's memory.
    """
    free = room(get_device())
    if free < size_bytes:
        raise SettingError(
            f"Model: a context of {capacity} tokens takes {size_bytes / 2**30:.2f} GiB, and the device has "
            f"{free / 2**30:.2f} GiB left. Choose a smaller context (capacity; kernmill run: -c; kernmill bench: "
            "-p and -n), or a cache type of fewer bits (cache_type; kernmill run: --cache-type)."
        )
