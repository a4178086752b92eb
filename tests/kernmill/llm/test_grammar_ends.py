from __future__ import annotations

from typing import Any

import pytest

from kernmill.llm.grammar_ends import endless_rule, schema_ends


@pytest.mark.parametrize(
    ("grammar", "ends"),
    [
        ('root ::= "a" root', False),
        ('root ::= "a" root | "b"', True),
        ('root ::= "a" root?', True),
        ('root ::= ("a" root)* "."', True),
        ('root ::= "a" (root | other) # ::= "x"\nother ::= [a-z] root', False),
        ('root ::= item+\nitem ::= "- " [^\\n\\]]+ "\\n"', True),
        ('root ::= item{2}\nitem ::= "x" item', False),
        ('root ::= item{0,2}\nitem ::= "x" item', True),
        ('root ::= "]\\"" root\nother ::= "a"', False),
        ('root ::= unknown', False),
        ("", True),
    ],
)  # fmt: skip
def test_grammars(grammar: str, ends: bool) -> None:
    assert (endless_rule(grammar) is None) == ends


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({}, True),
        (True, True),
        ({"type": "string"}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"$ref": "#"}, False),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, True),
        ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, False),
    ],
)
def test_schemas(schema: Any, ends: bool) -> None:
    assert schema_ends(schema) == ends
