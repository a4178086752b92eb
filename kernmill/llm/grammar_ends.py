"""Whether some text completes a grammar or a JSON schema: one that never ends would fill the context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["endless_rule", "schema_ends"]

_TOKEN = re.compile(
    r'#[^\n]*|\s+|(?P<name>[\w-]+)(?P<defines>\s*::=)?|(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\.)'
    r"|(?P<repeat>[*+?]|\{\s*(?P<least>\d+)?\s*,?\s*\d*\s*\})|(?P<sign>[|()])",
    re.DOTALL,
)
# A rule is a list of alternatives, each a list of parts: the name of a rule, or alternatives; text is left out.
_Alternatives = list[list[Any]]


def endless_rule(grammar: str) -> str | None:
    """Return the name of the root rule of a GBNF grammar if no text completes it; None: one does, or it has none."""
    rules = _rules(grammar)
    ending: set[str] = set()
    while new := {name for name, body in rules.items() if name not in ending and _can_end(body, ending)}:
        ending |= new
    return "root" if "root" in rules and "root" not in ending else None


def _can_end(alternatives: _Alternatives, ending: set[str]) -> bool:
    return any(
        all(part in ending if isinstance(part, str) else _can_end(part, ending) for part in parts)
        for parts in alternatives
    )


def _rules(grammar: str) -> dict[str, _Alternatives]:
    rules: dict[str, _Alternatives] = {}
    open_groups: list[_Alternatives] = [[[]]]
    for match in _TOKEN.finditer(grammar):
        parts = open_groups[-1][-1]
        if match["name"] and match["defines"]:
            open_groups = [rules.setdefault(match["name"], [[]])]
        elif match["name"]:
            parts.append(match["name"])
        elif match["text"]:
            parts.append([[]])
        elif match["repeat"] and parts:
            if match["repeat"] in ("*", "?") or (match["repeat"][0] == "{" and int(match["least"] or 0) == 0):
                parts[-1] = [[]]
        elif match["sign"] == "|":
            open_groups[-1].append([])
        elif match["sign"] == "(":
            group: _Alternatives = [[]]
            parts.append(group)
            open_groups.append(group)
        elif match["sign"] == ")" and len(open_groups) > 1:
            open_groups.pop()
    return rules


def schema_ends(schema: Any) -> bool:
    """True if some finite value is valid; False: each value would contain another one of its kind."""
    named: dict[str, Any] = {}
    _collect(schema, schema, named)
    ending: set[str] = set()
    while new := {ref for ref, target in named.items() if ref not in ending and _is_finite(target, ending)}:
        ending |= new
    return _is_finite(schema, ending)


def _collect(node: Any, root: Any, named: dict[str, Any]) -> None:
    """Find all references and what they name."""
    pending = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            ref = one.get("$ref")
            if isinstance(ref, str) and ref not in named:
                named[ref] = _schema_of(root, ref)
            pending += one.values()
        elif isinstance(one, list):
            pending += one


def _schema_of(root: Any, ref: str) -> Any:
    """Return what a reference inside the schema names; True, which anything satisfies, if that is not found."""
    node = root
    for key in ref.removeprefix("#").strip("/").split("/"):
        if key:
            key = key.replace("~1", "/").replace("~0", "~")
            node = node.get(key, True) if isinstance(node, Mapping) else True
    return node


def _is_finite(schema: Any, ending: set[str]) -> bool:
    if not isinstance(schema, Mapping):
        return schema is not False
    ref, among = schema.get("$ref"), [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    if isinstance(ref, str) and ref not in ending:
        return False
    if not all(_is_finite(part, ending) for part in schema.get("allOf") or ()):
        return False
    if not all(any(_is_finite(part, ending) for part in parts) for parts in among):
        return False
    kinds = schema.get("type")
    if (kinds is not None and kinds not in ("object", "array")) or "enum" in schema or "const" in schema:
        return True
    parts = schema.get("properties") or {}
    needed = [parts[name] for name in schema.get("required") or () if name in parts]
    if kinds != "object" and isinstance(least := schema.get("minItems"), int) and least > 0:
        first = schema.get("prefixItems")
        needed += first if isinstance(first, list) else [schema.get("items", True)]
    return all(_is_finite(part, ending) for part in needed)
