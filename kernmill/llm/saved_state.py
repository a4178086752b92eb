"""The state of a text in a file: the tokens in a model's cache, with their keys, values and states.

A later process that loads it computes only what is new. The file is a safetensors file. Its metadata has the digest of
the model's file: keys of one model mean nothing to another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernmill import DType, FormatError, SettingError, Tensor, dtypes
from kernmill.ir import blake2b

from ..formats import safetensors
from ..formats.quoting import quoted
from .generate import Model
from .sources import check_without_source

__all__ = ["load_state", "save_state"]

_KIND, _VERSION = "state of a text", "1"
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32}  # by bytes of an element
Array = np.ndarray[Any, Any]


def save_state(model: Model, path: str | os.PathLike[str], tokens: int | None = None) -> int:
    """Write the tokens of the model's last text and what it keeps of them; return how many tokens these are.

    `tokens`: only the first ones, such as a prompt without its answer. A model with recurrent layers keeps the state
    after its last token, so that all are written. Of several sequences it is the first.

    Raises:
        SettingError: there is no text, or a model over ranks.
        FormatError: the file cannot be written.
    """
    with model.turn():
        _check_whole(model, "save_state")
        ids, cache = model._seen[0], model._cache
        ids = ids if tokens is None or cache.states else ids[:tokens]
        if not ids:
            raise SettingError("save_state: the model has no tokens in its cache. Generate a text first.")
        parts: dict[str, tuple[DType, tuple[int, ...], memoryview]] = {}
        for name, dtype, part in _cached_parts(model, len(ids)):
            array: Array = part.bitcast(_BITS[dtype.size_bytes]).contiguous().numpy()
            parts[name] = dtype, tuple(part.shape), memoryview(array.tobytes())
        parts["tokens"] = dtypes.int32, (len(ids),), memoryview(np.array(ids, np.int32).tobytes())
        safetensors.write(path, parts, _facts(model) | {"kept": str(model._kept.lengths[0])})
    return len(ids)


def load_state(model: Model, path: str | os.PathLike[str]) -> int:
    """Put a text that `save_state` wrote into the model's cache; return how many tokens it has.

    A call that begins with these tokens does not compute them again. If the file does not fit, nothing is changed.

    Raises:
        FormatError: the file is damaged, or of another model, cache type or version.
        SettingError: the text exceeds the model's capacity, or a model over ranks.
    """
    with model.turn():
        _check_whole(model, "load_state")
        file = safetensors.read(path)
        where = os.fspath(path)
        _check_facts(file.metadata, _facts(model), where)
        entry = file.entries.get("tokens")
        if entry is None or entry.dtype is not dtypes.int32 or len(entry.shape) != 1 or not entry.shape[0]:
            raise FormatError(f"{where}: it has no tokens. The file is damaged: write it again.")
        ids = np.frombuffer(file.values("tokens"), np.int32)
        if len(ids) > model.capacity:
            raise SettingError(
                f"load_state: {where} has {len(ids)} tokens, which exceed the cache capacity of {model.capacity}. "
                "Build the model with a larger capacity."
            )
        if ids.min() < 0 or ids.max() >= model.architecture.vocabulary:
            raise FormatError(f"{where}: a token id is not in the vocabulary. The file is damaged: write it again.")
        kept = file.metadata.get("kept", "")
        if not kept.isdecimal() or int(kept) > len(ids):
            raise FormatError(f"{where}: kept={quoted(kept)} is not a number of its tokens. The file is damaged.")
        targets = [*_cached_parts(model, len(ids))]
        for name, dtype, target in targets:
            found = file.entries.get(name)
            if found is None or (found.dtype, found.shape) != (dtype, tuple(target.shape)):
                raise FormatError(
                    f"{where}: {name} is missing or has another shape. The file is damaged: write it again."
                )
        for name, dtype, target in targets:
            array = np.frombuffer(file.values(name), f"u{dtype.size_bytes}").reshape(target.shape)
            target.assign(Tensor(array, device=target.device).bitcast(dtype)).realize()
        model._seen[0] = ids.tolist()
        model._kept.lengths[0] = int(kept)
    return len(ids)


def _cached_parts(model: Model, count: int) -> list[tuple[str, DType, Tensor]]:
    """Return the name, dtype and memory of everything that the cache has of the first `count` tokens."""
    cache, sequences = model._cache, len(model._seen)
    found: list[tuple[str, DType, Tensor]] = []
    for kind, tables in (("keys", cache.keys), ("values", cache.values)):
        found += [(f"{kind}.{layer}", table.dtype, table[0, :, :count]) for layer, table in tables.items()]
    for layer, states in cache.states.items():
        for n, table in enumerate(states):
            found.append((f"states.{layer}.{n}", table.dtype, table[0]))
            found.append((f"states.{layer}.{n}.kept", table.dtype, table[sequences]))
    return found


def _facts(model: Model) -> dict[str, str]:
    """Return everything that a state depends on."""
    digest = blake2b(model.digest.encode(), digest_size=16)
    for adapter in model.adapters:
        digest.update(f"{adapter.digest} {adapter.scale}".encode())
    cache = model._cache
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
