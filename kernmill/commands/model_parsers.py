"""The options of `kernmill embed | rerank | tokenize | show | split | perplexity | imatrix`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from kernmill.ir import SettingError

from . import options

__all__ = ["add_parsers", "parsed"]

_TEXTS, _FILE = "TEXT", "FILE"  # what words after the model are
_WORDS = {_TEXTS: "texts, as with -p", _FILE: "a text, as with -f"}


def add_parsers(add: Callable[..., argparse.ArgumentParser], command: Callable[[argparse.Namespace], int]) -> None:
    """Add the commands to a parser; `add` is its `add_parser`. `command` runs each by its `name`."""
    most = "most tokens of a text; default: what the model was trained on, at most 4096"
    embed = _parser(add, command, "embed", "vectors of texts, one JSON list in a line for each", takes=_TEXTS)
    _add_context(embed, most)
    _add_texts(embed)
    embed.add_argument(
        "--embd-normalize", type=int, choices=(-1, 2), default=2, metavar="N",
        help="2: vectors of length 1 (default); -1: as the model computes them",
    )  # fmt: skip
    rank = _parser(add, command, "rerank", "sort texts by how well they answer a query; needs a reranker", takes=_TEXTS)
    _add_context(rank, most)
    rank.add_argument("-q", "--query", metavar="TEXT", help="the query")
    _add_texts(rank)
    words = _parser(add, command, "tokenize", "the token ids of texts", takes=_TEXTS)
    _add_texts(words)
    words.add_argument("--ids", action="store_true", help="only the ids of each text, as a JSON list in a line")
    words.add_argument("--no-bos", action="store_true", help="without the tokens that begin and end a text")
    words.add_argument("--no-parse-special", action="store_true", help="names of control tokens in a text are text")
    _add_perplexity(
        _parser(add, command, "perplexity", "how well a model predicts a text; how near it is to another", takes=_FILE)
    )
    matrix = _parser(
        add, command, "imatrix", "the importance of the columns of matrices, for kernmill quantize", takes=_FILE
    )
    _add_chunks(matrix, "tokens of a chunk; default: 512")
    matrix.add_argument("-o", "--output", default="imatrix.gguf", metavar="FILE", help="default %(default)s")
    matrix.add_argument("--process-output", action="store_true", help="also for the matrix that makes logits")
    matrix.add_argument("--in-file", action="append", metavar="FILE",
                        help="add the sums of an earlier text; may be repeated; -f may then be missing")  # fmt: skip
    parts = _parser(
        add, command, "split", "write a GGUF file as several, or several as one", computes=False, takes=None
    )
    parts.add_argument("target", metavar="OUT", help="prefix of the files; with --merge the path of the file")
    parts.add_argument("--merge", action="store_true", help="MODEL is the first of several files, which become one")
    parts.add_argument("--split-max-size", metavar="N", help="most bytes of the tensors of a file, such as 2G")
    parts.add_argument(
        "--split-max-tensors", type=options.whole_number("number of tensors", 1), metavar="N",
        help="most tensors of a file; default: 128, without a size",
    )  # fmt: skip
    show = _parser(add, command, "show", "metadata, and tensors by type, of a GGUF file", computes=False)
    show.add_argument("--tensors", action="store_true", help="list every tensor")
    show.add_argument("--json", action="store_true", help="as one JSON object")


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse; texts of a command on a model may be between its options.

    Raises:
        SettingError: no model, two, or two files of text.
    """
    given, rest = parser.parse_known_args(arguments)
    takes = getattr(given, "takes", None)
    if rest and (takes is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if takes is not None:
        _take_words(given, takes, [*([] if given.path is None else [given.path]), *getattr(given, "words", ()), *rest])
    return given


def _take_words(given: argparse.Namespace, takes: str, words: list[str]) -> None:
    """Say which word is the model; the others are texts, or a file of text."""
    name, usage = given.name, f"kernmill {given.name} model.gguf {takes}".rstrip()
    hub = options.from_hub(name, given)
    if None not in (hub, given.model):
        raise SettingError(f"{name}: two models, {given.model} and -hf {given.hf_repo}. Give one.")
    given.model = given.model if hub is None else hub
    if given.model is None:
        if not words:
            raise SettingError(f"{name}: no model. Give a GGUF file: {usage}.")
        given.model = words.pop(0)
    if takes == _TEXTS:
        given.prompt = [*(given.prompt or ()), *words] or None
    elif takes == _FILE and words and given.file is None:
        given.file = words.pop(0)
    if words and takes != _TEXTS:
        also = " ".join(words)
        raise SettingError(f"{name}: {also} is one word too many. Write {usage}.")


def _add_perplexity(parser: argparse.ArgumentParser) -> None:
    _add_chunks(parser, "tokens of a chunk; default: 512, or that of the base")
    parser.add_argument(
        "--kl-divergence-base", "--save-all-logits", metavar="FILE",
        help="write what the model predicts to this file; with --kl-divergence: compare with it",
    )  # fmt: skip
    parser.add_argument("--kl-divergence", action="store_true", help="compare with the base; the text is its own")


def _add_chunks(parser: argparse.ArgumentParser, context: str) -> None:
    """Options of a text that is read in chunks."""
    parser.add_argument("-f", "--file", metavar="FILE", help="a text; - is stdin")
    parser.add_argument("--chunks", type=options.whole_number("number of chunks", 1, (-1,)), metavar="N",
                        help="read only the first N chunks; -1 = all (default)")  # fmt: skip
    _add_context(parser, context)


def _add_context(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument(
        "-c", "--ctx-size", type=options.whole_number("number of tokens", 1), metavar="N", help=meaning
    )  # fmt: skip


def _parser(
    add: Callable[..., argparse.ArgumentParser],
    command: Callable[[argparse.Namespace], int],
    name: str,
    meaning: str,
    *,
    computes: bool = True,
    takes: str | None = "",
) -> argparse.ArgumentParser:
    parser = add(name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}.")
    what = "a GGUF file, the first part of a split one, or the folder of a Hugging Face model"
    if takes is None:
        parser.add_argument("model", metavar="MODEL", help=what)
    else:
        parser.add_argument("path", nargs="?", metavar="MODEL", help=what)
        parser.add_argument("-m", "--model", metavar="FILE", help="the same")
        options.add(parser, options.HUB)
        parser.set_defaults(takes=takes)
    if takes:
        parser.add_argument("words", nargs="*", metavar=takes, help=_WORDS[takes])
    if computes and name != "tokenize":
        parser.add_argument("--device", help="such as LLVM; default: the setting DEVICE")
        parser.add_argument(
            "-t", "--threads", type=options.whole_number("number of threads", 1), metavar="N",
            help="default: the setting THREADS",
        )  # fmt: skip
    parser.set_defaults(command=command, name=name)
    return parser


def _add_texts(parser: argparse.ArgumentParser) -> None:
    """Options of commands on several texts."""
    parser.add_argument("-p", "--prompt", action="append", metavar="TEXT", help="a text; may be repeated")
    parser.add_argument("-f", "--file", metavar="FILE", help="a text in each line; without -p and -f: lines of stdin")
