"""The state of a text in a file: the tokens in a model's cache, with their keys, values and states.

A later process that loads it computes only what is new. The file is a safetensors file. Its metadata has the digest of
the model's file: keys of one model mean nothing to another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernmill import DType, FormatError, SettingError, Tensor, dtypes
from kernmill.ir import blake2b

from ..formats import safetensors
from ..formats.quoting import quoted
from .arch import Cache
from .generate import Model
from .sources import check_without_source

__all__ = ["SavedText", "load_state", "read_text", "save_state", "write_text"]

_KIND, _VERSION = "state of a text", "1"
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32}  # by bytes of an element
_STEP = 64  # positions that are read and written are a multiple of it, so that few kernels serve all lengths
Array = np.ndarray[Any, Any]


class SavedText(NamedTuple):
    """A sequence of a cache, its tokens, and how many of them are before its kept state."""

    cache: Cache
    number: int
    sequences: int
    capacity: int
    ids: list[int]
    kept: int = 0


def save_state(model: Model, path: str | os.PathLike[str], tokens: int | None = None) -> int:
    """Write the tokens of the model's last text and what it keeps of them; return how many tokens these are.

    `tokens`: only the first ones, such as a prompt without its answer. A model with recurrent layers keeps the state
    after its last token, so that all are written. Of several sequences it is the first.

    Raises:
        SettingError: there is no text, or a model over ranks.
        FormatError: the file cannot be written.
    """
    with model.turn():
        text = _of_model(model)
        if tokens is not None and not text.cache.states:
            text = text._replace(ids=text.ids[:tokens])
        return write_text(model, text, path, "save_state")


def load_state(model: Model, path: str | os.PathLike[str]) -> int:
    """Put a text that `save_state` wrote into the model's cache; return how many tokens it has.

    A call that begins with these tokens does not compute them again. If the file does not fit, nothing is changed.

    Raises:
        FormatError: the file is damaged, or of another model, cache type or version.
        SettingError: the text exceeds the model's capacity, or a model over ranks.
    """
    with model.turn():
        found = read_text(model, _of_model(model), path, "load_state")
        model._seen[0] = found.ids
        model._kept.lengths[0] = found.kept
    return len(found.ids)


def write_text(model: Model, text: SavedText, path: str | os.PathLike[str], call: str) -> int:
    """Write a text of a cache of the model; return how many tokens it has. Raises the errors of `save_state`."""
    _check_whole(model, call)
    count = len(text.ids)
    if not count:
        raise SettingError(f"{call}: the model has no tokens in its cache. Generate a text first.")
    parts: dict[str, tuple[DType, tuple[int, ...], memoryview]] = {}
    for name, dtype, part, is_padded in _cached_parts(text):
        array: Array = part.bitcast(_BITS[dtype.size_bytes]).contiguous().numpy()
        array = array[:, :count] if is_padded else array
        parts[name] = dtype, array.shape, memoryview(array.tobytes())
    parts["tokens"] = dtypes.int32, (count,), memoryview(np.array(text.ids, np.int32).tobytes())
    safetensors.write(path, parts, _facts(model, text.cache) | {"kept": str(text.kept)})
    return count


def read_text(model: Model, into: SavedText, path: str | os.PathLike[str], call: str) -> SavedText:
    """Put a text of a file into a sequence of a cache of the model, and return it. Raises as `load_state`."""
    _check_whole(model, call)
    file = safetensors.read(path)
    where = os.fspath(path)
    _check_facts(file.metadata, _facts(model, into.cache), where)
    ids = _tokens_of(file, where, model.architecture.vocabulary)
    if len(ids) > into.capacity:
        raise SettingError(
            f"{call}: {where} has {len(ids)} tokens, which exceed the cache capacity of {into.capacity}. "
            "Build the model with a larger capacity."
        )
    kept = file.metadata.get("kept", "")
    if not kept.isdecimal() or int(kept) > len(ids):
        raise FormatError(f"{where}: kept={quoted(kept)} is not a number of its tokens. The file is damaged.")
    found = into._replace(ids=ids, kept=int(kept))
    read: list[tuple[Tensor, DType, Array]] = []
    for name, dtype, target, is_padded in _cached_parts(found):
        entry, shape = file.entries.get(name), tuple(target.shape)
        stored = (shape[0], len(ids), *shape[2:]) if is_padded else shape
        if entry is None or (entry.dtype, entry.shape) != (dtype, stored):
            raise FormatError(f"{where}: {name} is missing or has another shape. The file is damaged: write it again.")
        array = np.frombuffer(file.values(name), f"u{dtype.size_bytes}").reshape(stored)
        if stored != shape:
            array = np.pad(array, [(0, 0), (0, shape[1] - len(ids)), *[(0, 0)] * (len(shape) - 2)])
        read.append((target, dtype, array))
    for target, dtype, array in read:
        target.assign(Tensor(array, device=target.device).bitcast(dtype)).realize()
    return found


def _of_model(model: Model) -> SavedText:
    return SavedText(model._cache, 0, len(model._seen), model.capacity, model._seen[0], model._kept.lengths[0])


def _tokens_of(file: safetensors.SafetensorsFile, where: str, vocabulary: int) -> list[int]:
    entry = file.entries.get("tokens")
    if entry is None or entry.dtype is not dtypes.int32 or len(entry.shape) != 1 or not entry.shape[0]:
        raise FormatError(f"{where}: it has no tokens. The file is damaged: write it again.")
    ids = np.frombuffer(file.values("tokens"), np.int32)
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise FormatError(f"{where}: a token id is not in the vocabulary. The file is damaged: write it again.")
    found: list[int] = ids.tolist()
    return found


def _cached_parts(text: SavedText) -> Iterator[tuple[str, DType, Tensor, bool]]:
    """Yield the name, dtype and memory of everything that the cache has of a text. True: its second axis is the
    positions, some more than the text has."""
    cache, number = text.cache, text.number
    count = min(text.capacity, -(-len(text.ids) // _STEP) * _STEP)
    for kind, tables in (("keys", cache.keys), ("values", cache.values)):
        for layer, table in tables.items():
            yield f"{kind}.{layer}", table.dtype, table[number, :, :count], True
    for layer, states in cache.states.items():
        for n, table in enumerate(states):
            yield f"states.{layer}.{n}", table.dtype, table[number], False
            yield f"states.{layer}.{n}.kept", table.dtype, table[text.sequences + number], False


def _facts(model: Model, cache: Cache) -> dict[str, str]:
    """Return everything that a state depends on."""
    digest = blake2b(model.digest.encode(), digest_size=16)
    for adapter in model.adapters:
        digest.update(f"{adapter.digest} {adapter.scale}".encode())
    return {
        "kind": _KIND, "version": _VERSION, "model": digest.hexdigest(),
        "cache": f"{cache.key_type} keys, {cache.value_type} values",
    }  # fmt: skip


def _check_facts(found: Mapping[str, str], wanted: Mapping[str, str], where: str) -> None:
    if found.get("kind") != _KIND:
        raise FormatError(f"{where}: it is not the {_KIND}. Write one with save_state.")
    if found.get("version") != _VERSION:
        raise FormatError(f"{where}: its version is {quoted(found.get('version'))}, not {_VERSION}. Write it again.")
    if found.get("model") != wanted["model"]:
        raise FormatError(f"{where}: it is of another model, or of other adapters. Write it again with this model.")
    if found.get("cache") != wanted["cache"]:
        raise FormatError(f"{where}: it has {quoted(found.get('cache'))}, and the model's cache {wanted['cache']}.")


def _check_whole(model: Model, call: str) -> None:
    check_without_source(model.architecture, call)
    if model.config.part is not None:
        raise SettingError(f"{call}: the model is divided over {model.config.part.size} ranks. Open it on one rank.")
    if not model.digest:
        raise SettingError(f"{call}: the model is not from a file, so that a state cannot name it. Use from_gguf.")
