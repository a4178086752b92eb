"""The index of weights that are in several files: JSON with the file of each tensor.

    {"metadata": {"total_size": 10}, "weight_map": {"name": "model-00001-of-00002.safetensors"}}

The files are next to the index: a path in it is refused.
"""

from __future__ import annotations

import json
import os
from typing import Any

from kernmill.ir import FormatError

from .disk import opened
from .quoting import quoted

__all__ = ["read_index"]

_MOST_BYTES = 100_000_000  # as of the header of one file


def read_index(path: str | os.PathLike[str]) -> dict[str, set[str]]:
    """The names of the tensors of each file, by the path of the file.

    Raises:
        FormatError: the file is not an index, or names a file in another folder.
    """
    where = os.fspath(path)
    with opened(path, "index") as (file, size):
        if size > _MOST_BYTES:
            raise FormatError(f"{where}: {size} bytes are too many for an index. Give the index of a model.")
        data = file.read()
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not valid JSON: {error}. Fetch the index again.") from None
    table = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(table, dict) or not table:
        raise FormatError(
            f"{where}: it has no weight_map. Give the index of weights, such as model.safetensors.index.json."
        )
    files = dict[str, set[str]]()
    for name, part in table.items():
        if not isinstance(part, str) or os.path.basename(part) != part or part in ("", ".", "..") or "\\" in part:
            raise FormatError(
                f"{where}: tensor {quoted(name)}: its file is {quoted(part)}, which is not a name in the same folder."
            )
        files.setdefault(os.path.join(os.path.dirname(where), part), set()).add(name)
    return files
