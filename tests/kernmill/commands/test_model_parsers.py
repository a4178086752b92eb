"""The options of commands on a model."""

from __future__ import annotations

import argparse

import pytest

from kernmill.commands.model_parsers import add_parsers, parsed
from kernmill.ir import SettingError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_parsers(made.add_subparsers().add_parser, lambda given: 0)
    return made


def test_each_command_has_its_name(parser: argparse.ArgumentParser) -> None:
    for words in (["embed", "m"], ["rerank", "m", "-q", "a"], ["tokenize", "m", "--ids"], ["show", "m", "--json"]):
        given = parsed(parser, words)
        assert (given.name, given.model) == (words[0], "m")
    with pytest.raises(SystemExit):
        parsed(parser, ["embed", "m", "--embd-normalize", "3"])


@pytest.mark.parametrize(
    "words",
    [
        ["embed", "m", "a", "b"],
        ["embed", "-m", "m", "a", "b"],
        ["embed", "a", "b", "-m", "m"],
        ["embed", "-t", "1", "m", "a", "b"],
        ["embed", "m", "-t", "1", "a", "b"],
        ["embed", "m", "a", "-t", "1", "b"],
        ["rerank", "m", "-q", "c", "a", "b"],
        ["tokenize", "m", "a", "b"],
        ["tokenize", "m", "-p", "a", "-p", "b"],
        ["tokenize", "m", "-p", "a", "b"],
    ],
    ids=" ".join,
)
def test_words_after_the_model_are_texts(parser: argparse.ArgumentParser, words: list[str]) -> None:
    given = parsed(parser, words)
    assert (given.model, given.prompt) == ("m", ["a", "b"])


@pytest.mark.parametrize(
    "words", [["m", "t"], ["m", "-f", "t"], ["-m", "m", "t"], ["t", "-m", "m"], ["m", "-c", "8", "t"]]
)
@pytest.mark.parametrize("command", ["perplexity", "imatrix"])
def test_a_word_after_the_model_is_a_file_of_text(
    parser: argparse.ArgumentParser, command: str, words: list[str]
) -> None:
    given = parsed(parser, [command, *words])
    assert (given.model, given.file) == ("m", "t")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["embed"], r"embed: no model\. Give a GGUF file: kernmill embed model\.gguf TEXT\."),
        (["show"], r"show: no model\. Give a GGUF file: kernmill show model\.gguf\."),
        (["show", "m", "n"], r"show: n is one word too many\. Write kernmill show model\.gguf\."),
        (
            ["imatrix", "m", "t", "-f", "u"],
            r"imatrix: t is one word too many\. Write kernmill imatrix model\.gguf FILE\.",
        ),
    ],
)
def test_words_that_are_missing_or_too_many(parser: argparse.ArgumentParser, words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        parsed(parser, words)


def test_an_unknown_option_is_no_text(parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(parser, ["embed", "m", "--normalise", "a"])
    assert "unrecognized arguments: --normalise" in capsys.readouterr().err
