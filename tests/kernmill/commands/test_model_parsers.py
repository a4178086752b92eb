"""The options of commands on a model."""

from __future__ import annotations

import argparse

import pytest

from kernmill.commands.model_parsers import add_parsers


def test_each_command_has_its_name() -> None:
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers().add_parser, lambda given: 0)
    for words in (["embed", "m"], ["rerank", "m", "-q", "a"], ["tokenize", "m", "--ids"], ["show", "m", "--json"]):
        given = parser.parse_args(words)
        assert (given.name, given.model) == (words[0], "m")
    with pytest.raises(SystemExit):
        parser.parse_args(["embed", "m", "--embd-normalize", "3"])
