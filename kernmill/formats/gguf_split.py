"""Split GGUF files: PREFIX-00001-of-00003.gguf and so on, as llama.cpp names and marks them.

Each part is a GGUF file with some of the tensors and three metadata values: `split.no` from 0 on, `split.count`, and
`split.tensors.count`, the tensors of all parts. The first part has the other metadata too. `gguf.read` of the first
part opens all. Tests: tests/kernmill/formats/test_gguf_split.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kernmill.ir import FormatError

from . import gguf, gguf_write
from .gguf_types import ValueType

__all__ = ["check_targets", "divided", "part_paths", "without_parts", "write_parts"]

_OWN = ("split.no", "split.count", "split.tensors.count")
_MOST_PARTS = 1 << 16  # split.no has 16 bits


def part_paths(prefix: str | os.PathLike[str], count: int) -> list[str]:
    """Return the paths of `count` parts. A suffix .gguf of the prefix is dropped."""
    start = os.fspath(prefix).removesuffix(".gguf")
    return [f"{start}-{n + 1:05}-of-{count:05}.gguf" for n in range(count)]


def without_parts(metadata: gguf.Metadata) -> dict[str, Any]:
    """Return the metadata of a file as bytes, without those of a part."""
    return {key: metadata.raw(key) for key in metadata if key not in _OWN and key != "general.alignment"}


def divided(
    sizes: Mapping[str, int], most_bytes: int | None = None, most_tensors: int | None = None
) -> list[list[str]]:
    """Divide tensors into parts, in their order: each with up to `most_tensors`, and up to `most_bytes` of them, or one
    larger tensor. `sizes` has the bytes of each tensor by name."""
    parts: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        is_full = most_tensors is not None and len(parts[-1]) >= most_tensors
        is_large = most_bytes is not None and used + size > most_bytes
        if parts[-1] and (is_full or is_large):
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return parts


def check_targets(file: gguf.GGUFFile, targets: Sequence[str | os.PathLike[str]]) -> None:
    """No target is a part of the source.

    Raises:
        FormatError: one is.
    """
    for target in targets:
        if os.path.exists(target) and any(os.path.samefile(target, path) for path in file.paths):
            raise FormatError(f"{os.fspath(target)}: is the input file. Write to a different path.")


def write_parts(
    prefix: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    parts: Sequence[Mapping[str, gguf_write.NewTensor]],
    *,
    alignment: int = gguf.DEFAULT_ALIGNMENT,
) -> list[str]:
    """Write a file for each part, and return their paths. After an error none of those that are new is left.

    Raises:
        FormatError: as `gguf_write.write`; too many parts.
    """
    if len(parts) >= _MOST_PARTS:
        raise FormatError(f"{os.fspath(prefix)}: {len(parts)} parts, and a split file has up to {_MOST_PARTS - 1}. "
                          "Choose a larger size of parts.")  # fmt: skip
    paths, short = part_paths(prefix, len(parts)), ValueType.UINT16
    total = gguf_write.Typed(ValueType.INT32, sum(map(len, parts)))
    written: list[str] = []
    try:
        for n, (path, tensors) in enumerate(zip(paths, parts, strict=True)):
            own: dict[str, Any] = dict(
                zip(_OWN, (*(gguf_write.Typed(short, v) for v in (n, len(parts))), total), strict=True)
            )
            is_new = not os.path.exists(path)
            gguf_write.write(path, own if n else {**metadata, **own}, tensors, alignment=alignment)
            written += [path] if is_new else []
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    return paths
