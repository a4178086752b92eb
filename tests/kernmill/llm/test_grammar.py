"""Texts under a grammar, which a model writes that has never seen its form; grammars that cannot be obeyed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernmill.ir import FormatError, SettingError
from kernmill.llm.engine import Engine, GenerationRequest, SamplingOptions
from kernmill.llm.generate import Model
from kernmill.llm.grammar import Grammar
from kernmill.llm.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 3, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST = 'root ::= item item+\nitem ::= "- " [a-z]{2,5} "\\n"'


@pytest.fixture(scope="module")
def stories(shared_data: Callable[[str], Path]) -> Iterator[Model]:
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    with Model.from_gguf(shared_data("stories260K") / "stories260Ktok512.gguf", capacity=128) as model:
        yield model


@pytest.fixture
def tokenizer(stories: Model) -> Tokenizer:
    assert stories.tokenizer is not None
    return stories.tokenizer


def test_texts_of_several_grammars_at_once(stories: Model, tokenizer: Tokenizer) -> None:
    start = tokenizer.encode("Once upon a time")
    grammars = [Grammar.of_schema(SCHEMA, tokenizer), Grammar("gbnf", LIST, tokenizer), None]
    grammars.append(Grammar("regex", "(red|blue)( [0-9]{2})?", tokenizer))
    with Engine(stories, slots=2, chunk=32) as engine:
        for seed in range(3):
            options = SamplingOptions(1.0, seed=seed)
            started = [
                engine.submit(GenerationRequest(start, options, max_tokens=60, grammar=grammar)) for grammar in grammars
            ]
            texts = [one.text() for one in started]
            if started[0].finish_reason == "stop":
                found = json.loads(texts[0])
                assert sorted(found) == ["age", "name"]
                assert 3 <= found["age"] <= 9
            if started[1].finish_reason == "stop":
                assert re.fullmatch(r"(- [a-z]{2,5}\n){2,}", texts[1])
            assert re.fullmatch("(red|blue)( [0-9]{2})?", texts[3])
            assert started[3].finish_reason == "stop"
        assert started[2].finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        (
            "gbnf",
            'root ::= "a" root',
            r"^the grammar never ends: each text of the rule root needs another one inside\.",
        ),
        ("gbnf", "root ::= ((", r"^the grammar cannot be read: Failed to convert the grammar from GBNF to Lark"),
        ("gbnf", "root ::= foo", r"^the grammar cannot be read: .*Rule 'foo' not found"),
        ("regex", "(", r"^the regular expression cannot be read: .*regex parse error"),
        ("json_schema", "{", r"^the JSON schema cannot be read: "),
        ("json_schema", '{"type": "strange"}', r"^the JSON schema cannot be read: Invalid type: strange\.$"),
        ("json_schema", '{"if": {}}', r'^the JSON schema cannot be read: Unimplemented keys: \["if"\]\.$'),
        ("json_schema", '{"$ref": "#"}', r"^the JSON schema never ends: each value needs another one of its kind"),
    ],
)
def test_grammars_that_cannot_be_obeyed(tokenizer: Tokenizer, form: str, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Grammar(form, text, tokenizer)


def test_a_long_grammar(tokenizer: Tokenizer) -> None:
    with pytest.raises(SettingError, match=r"^a grammar of 70000 characters\. At most 65536 are read\.$"):
        Grammar("gbnf", "#" * 70_000, tokenizer)
