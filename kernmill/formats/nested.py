"""Nested containers in one file: leaves by dotted names, and the containers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kernmill.ir import DTypeError, FormatError

from .quoting import quoted

__all__ = ["MOST_DEPTH", "STRUCTURE", "flattened", "rebuilt"]

STRUCTURE = "kernmill.structure"  # the name among the strings of a file
MOST_DEPTH = 100


def flattened(tree: Mapping[Any, Any], leaf: type) -> tuple[dict[str, Any], str | None]:
    """Return the leaves by name, and the structure; None for a flat dict of leaves.

    Containers are dicts, lists and tuples; other values are strings, numbers, bools and None.

    Raises:
        DTypeError: a value or a key of another type, or a container that contains itself.
    """
    leaves = dict[str, Any]()
    structure = _flattened(tree, "", leaf, leaves, 0)
    is_flat = all(isinstance(key, str) and isinstance(value, leaf) for key, value in tree.items())
    return leaves, None if is_flat else json.dumps(structure, separators=(",", ":"))


def _flattened(value: Any, path: str, leaf: type, leaves: dict[str, Any], depth: int) -> Any:
    if depth > MOST_DEPTH:
        raise DTypeError(f"save: {quoted(path)} is nested deeper than {MOST_DEPTH}, or contains itself.")
    if isinstance(value, leaf):
        name, number = path, 1
        while name in leaves:
            name, number = f"{path}.{number}", number + 1
        leaves[name] = value
        return {"leaf": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value

    def inner(key: object, part: Any) -> Any:
        return _flattened(part, f"{path}.{key}" if path else str(key), leaf, leaves, depth + 1)

    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, (str, int)) or isinstance(key, bool)]:
            raise DTypeError(f"save: {quoted(path)} has the key {quoted(bad[0])}. Use strings or integers.")
        return {"dict": [[key, inner(key, part)] for key, part in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [inner(i, part) for i, part in enumerate(value)]}
    raise DTypeError(
        f"save: {path!r} is a {type(value).__name__}. Give tensors, numbers, strings, and dicts, lists and tuples of "
        "them; wrap data in Tensor(..)."
    )


def rebuilt(structure: str, leaves: Mapping[str, Any], where: str) -> Any:
    """Return the containers with the leaves of the file.

    Raises:
        FormatError: the structure is damaged, or does not have each leaf once.
    """
    rest = dict(leaves)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value if not isinstance(value, list) else _broken("a list without its kind")
        ((kind, content),) = value.items()
        if kind == "leaf":
            return rest.pop(content)
        if kind == "dict":
            return {_plain_key(key): read(part) for key, part in content}
        parts = [read(part) for part in content]
        return {"list": parts, "tuple": tuple(parts)}[kind]

    try:
        found = read(json.loads(structure))
        if rest:
            _broken(f"{quoted(next(iter(rest)))} is in no container")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(
            f"{where}: {STRUCTURE} is damaged: {quoted(str(error))}. Save the checkpoint again."
        ) from None
    return found


def _plain_key(key: Any) -> Any:
    if isinstance(key, str) or (type(key) is int and abs(key) < 1 << 60):
        return key
    return _broken(f"the key {quoted(key)}")


def _broken(text: str) -> Any:
    raise ValueError(text)
