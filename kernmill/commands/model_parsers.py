"""The options of `kernmill embed | rerank | tokenize | show`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from . import options

__all__ = ["add_parsers"]


def add_parsers(add: Callable[..., argparse.ArgumentParser], command: Callable[[argparse.Namespace], int]) -> None:
    """Add the commands to a parser; `add` is its `add_parser`. `command` runs each by its `name`."""
    embed = _parser(add, command, "embed", "vectors of texts, one JSON list in a line for each")
    _add_texts(embed)
    embed.add_argument(
        "--embd-normalize", type=int, choices=(-1, 2), default=2, metavar="N",
        help="2: vectors of length 1 (default); -1: as the model computes them",
    )  # fmt: skip
    rank = _parser(add, command, "rerank", "sort texts by how well they answer a query; needs a reranker")
    rank.add_argument("-q", "--query", required=True, metavar="TEXT", help="the query")
    _add_texts(rank)
    words = _parser(add, command, "tokenize", "the token ids of texts")
    _add_texts(words)
    words.add_argument("--ids", action="store_true", help="only the ids of each text, as a JSON list in a line")
    words.add_argument("--no-bos", action="store_true", help="without the tokens that begin and end a text")
    words.add_argument("--no-parse-special", action="store_true", help="names of control tokens in a text are text")
    show = _parser(add, command, "show", "metadata, and tensors by type, of a GGUF file", computes=False)
    show.add_argument("--tensors", action="store_true", help="list every tensor")
    show.add_argument("--json", action="store_true", help="as one JSON object")


def _parser(
    add: Callable[..., argparse.ArgumentParser],
    command: Callable[[argparse.Namespace], int],
    name: str,
    meaning: str,
    *,
    computes: bool = True,
) -> argparse.ArgumentParser:
    parser = add(name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}.")
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or the first part of a split one")
    if computes and name != "tokenize":
        parser.add_argument("--device", help="such as LLVM; default: the setting DEVICE")
        parser.add_argument(
            "-t", "--threads", type=options.whole_number("number of threads", 1), metavar="N",
            help="default: the setting THREADS",
        )  # fmt: skip
        parser.add_argument(
            "-c", "--ctx-size", type=options.whole_number("number of tokens", 1), metavar="N",
            help="most tokens of a text; default: what the model was trained on, at most 4096",
        )  # fmt: skip
    parser.set_defaults(command=command, name=name)
    return parser


def _add_texts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="a text; may be repeated")
    parser.add_argument("-f", "--file", metavar="FILE", help="a text in each line; without -p and -f: lines of stdin")
