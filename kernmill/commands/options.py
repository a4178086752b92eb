"""The options of `kernmill run` and `kernmill bench`: a row each, under llama.cpp's names too; what to do without the
others that it has; and a prompt as it was given."""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from kernmill.ir import FormatError, SettingError

__all__ = ["BENCH", "RUN", "Option", "cache_type", "read", "typed_text", "whole_number", "written_prompt"]


class Option(NamedTuple):
    """A row: its names, what reads a value (None: it takes none), the default, what it means, and its value's word."""

    names: str
    reads: Callable[[str], Any] | None
    default: Any
    meaning: str
    value: str | None = None

    @property
    def long(self) -> str:
        """The name that goes to argparse with a value."""
        return next(name for name in self.names.split() if name.startswith("--"))

    @property
    def help(self) -> str:
        """Its meaning, and the default where it says something."""
        shown = str(self.default).strip("[]")
        return self.meaning if self.default in (None, False, "") else f"{self.meaning} (default {shown})"


def whole_number(words: str, least: int, none: Sequence[int] = ()) -> Callable[[str], int | None]:
    """Reads a whole number from `least` on; those in `none` say that there is no limit, or no choice: None."""

    def reads(text: str) -> int | None:
        value = int(text)
        if value < least and value not in none:
            why = f"neither a {words} nor {none[0]}" if none else f"not {least} or more"
            raise argparse.ArgumentTypeError(f"{text} is {why}")
        return None if value in none else value

    reads.__name__ = words  # what argparse calls it where int() refuses a text
    return reads


def _list_of(reads: Callable[[str], int | None]) -> Callable[[str], list[int | None]]:
    def read_all(text: str) -> list[int | None]:
        return [reads(part) for part in text.split(",")]

    read_all.__name__ = "list of numbers"
    return read_all


def _one_of(*words: str) -> Callable[[str], str]:
    def chosen(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
        return text

    return chosen


_COUNT, _TOKENS = whole_number("whole number", 1), whole_number("number of tokens", 0)

# fmt: off
_MODEL = Option("-m --model", str, None, "a GGUF file, or the first part of a split one; also without -m", "FILE")
_SHARED = (
    Option("--cache-type --cache-type-k -ctk", str.lower, None, "of keys and values: f32 (default), f16, bf16, or blocks: q8_0 (a quarter of f32), q4_0, ..", "TYPE"),
    Option("--cache-type-v -ctv", str.lower, None, "the same type again, where both are written: values are kept as keys are", "TYPE"),
    Option("-b --batch-size --ubatch-size -ub", _COUNT, None, "tokens of a prompt that are computed together (default: 64, or 512 with a matrix unit)", "N"),
    Option("--device -dev", str, None, "such as LLVM or CL; default: the setting DEVICE", "NAME"),
)
RUN = (
    _MODEL,
    Option("-p --prompt", str, None, "the text to go on with; with --chat the first message. Without -p and -f it is what comes through a pipe", "TEXT"),
    Option("-f --file", str, None, "a file with the prompt, as it is but for a line's end at its end", "FILE"),
    Option("--no-escape", None, False, r"\n, \t, \\, \" and \x41 in -p and --system stay as they are written"),
    Option("-n --n-predict --predict", whole_number("number of tokens", 0, none=(-1, -2)), None, "tokens at most; -1, -2: until the text ends or the context is full (default)", "N"),
    Option("-c --ctx-size", _TOKENS, None, "tokens of context; 0: what the model was trained on. Default: just enough for -p and -n, else what the model was trained on, at most 4096", "N"),
    Option("--chat --conversation -cnv", None, False, "a conversation by the chat template in the file (ChatML where it has none): messages come from stdin, a line each"),
    Option("--system --system-prompt -sys", str, "", "with --chat: what the model is told before", "TEXT"),
    Option("--single-turn -st", None, False, "with --chat: one message and its answer"),
    Option("--no-display-prompt", None, False, "only what the model adds"),
    Option("--temperature --temp", float, 0.8, "0: the best token", "N"),
    Option("--top-k", whole_number("whole number", 0, none=(-1,)), 40, "only the k best; 0, -1: all", "N"),
    Option("--top-p", float, 0.95, "only the best of this sum", "N"),
    Option("--min-p", float, 0.05, "only this part of the best", "N"),
    Option("--repeat-penalty", float, 1.0, "1: none", "N"),
    Option("--repeat-last-n", int, 64, "tokens that it looks at; -1: all", "N"),
    Option("--ignore-eos", None, False, "the tokens that end a text are not chosen"),
    Option("-s --seed", whole_number("whole number", 0, none=(-1,)), None, "for the same text again; -1: another each time (default)", "N"),
    Option("-t --threads", _COUNT, None, "default: the setting THREADS", "N"),
    *_SHARED,
)
BENCH = (
    _MODEL,
    Option("-p --n-prompt", _list_of(_TOKENS), [512], "tokens of prompts; 0: none", "N,N"),
    Option("-n --n-gen", _list_of(_TOKENS), [128], "tokens to make; 0: none", "N,N"),
    Option("-r --repetitions", _COUNT, 5, "samples", "N"),
    Option("-o --output", _one_of("md", "csv", "json", "jsonl"), "md", "md, csv, json or jsonl", "FORM"),
    Option("-t --threads", _list_of(_COUNT), None, "default: the setting THREADS", "N,N"),
    *_SHARED,
)

_OTHERS = (  # names of llama.cpp's (also with -more behind them), and what to do
    ("-ngl --gpu-layers --n-gpu-layers -sm --split-mode -mg --main-gpu -ts --tensor-split -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -nkvo --no-kv-offload -kvo --kv-offload --op-offload --no-op-offload -nopo --rpc -rpc --list-devices --fit",
     "Leave it out: a model runs as a whole on one device. --device NAME chooses another; kernmill info lists them."),
    ("--mmap --no-mmap -mmp --mlock --numa -dio --direct-io --repack --no-repack -nr --no-host --check-tensors",
     "Leave it out: weights are copied once, and the pages of the file behind them are given back."),
    ("-fa --flash-attn --swa-full -kvu --kv-unified -dt --defrag-thold --warmup --no-warmup", "Leave it out: the kernels are made for the model."),
    ("-tb --threads-batch -C --cpu-mask --cpu-range -Cr --cpu-strict --prio --poll --delay", "Leave it out: -t N is for prompts and for tokens."),
    ("--grammar -j --json-schema -jf", "Nothing here holds a text to a form. Ask for the form in the prompt, or choose tokens by Model.next_logits in Python."),
    ("--mirostat --typical --dry --xtc --dynatemp --top-nsigma --top-n-sigma --presence-penalty --frequency-penalty -l --logit-bias --samplers --sampling-seq --sampler-seq",
     "Choose by --temp, --top-k, --top-p, --min-p and --repeat-penalty; in Python, by a sampler of your own."),
    ("-i --interactive -if -ins --instruct -cml --chatml -mli --multiline-input", "A conversation is --chat; each line is a message."),
    ("-no-cnv --no-conversation", "Leave it out: without --chat there is no conversation."),
    ("-r --reverse-prompt --in-prefix --in-suffix", "A text ends where the model ends it, or after -n N tokens."),
    ("-e --escape", r"Leave it out: \n in -p is a line's end unless there is --no-escape."),
    ("--jinja --no-jinja --chat-template --reasoning", "Leave it out: --chat takes the template that is in the file."),
    ("-sysf --system-prompt-file", 'Write -sys "$(cat FILE)".'),
    ("-bf --binary-file", "Give a text with -f FILE."),
    ("-hf -hfr --hf-repo --hf -hff --hf-file -mu --model-url -dr --docker-repo --offline", "Download the GGUF file, and give its path: -m FILE."),
    ("-md --model-draft --draft --lora --control-vector -mm --mmproj --image --audio -ctkd -ctvd", "A model runs as it stands in its file, by itself, on text."),
    ("--rope --yarn -gan --grp-attn -gaw --override-kv", "Leave it out: the file says how the model computes."),
    ("--keep --context-shift --no-context-shift --prompt-cache -np --parallel -cb --cont-batching",
     "Leave it out: a text ends where the context is full, and a conversation goes on without its oldest exchanges."),
    ("--color -co --colors --log -v --verbose -lv --verbosity --simple-io --perf --no-perf --show-timings --no-show-timings -sp --special --progress",
     "Leave it out: text goes to stdout, everything else to stderr."),
    ("-pg -d --n-depth -embd --embeddings", "Lengths of prompts are -p N,N, and of what is made -n N,N; each begins with an empty context."),
    ("-oe --output-err", "Write 2> FILE."),
)
# fmt: on
_TABLES = {"run": RUN, "bench": BENCH}


def read(command: str, words: Sequence[str], **texts: str) -> argparse.Namespace:
    """What the words after a command ask for. `texts`: description and epilog of its help.

    Raises:
        SettingError: an option that there is not, no model, or two.
    """
    what: dict[str, Any]
    parser = argparse.ArgumentParser(prog=f"kernmill {command}", allow_abbrev=False, **texts)  # type: ignore[arg-type]
    parser.add_argument("path", nargs="?", metavar="MODEL", help=_MODEL.meaning.replace("also without", "also as"))
    for row in _TABLES[command]:
        what = {"action": "store_true"} if row.reads is None else {"type": row.reads, "metavar": row.value}
        parser.add_argument(*row.names.split(), default=row.default, help=row.help.replace("%", "%%"), **what)
    given = parser.parse_args(_spelled(command, words))
    if given.path is None and given.model is None:
        raise SettingError(f"{command}: no model. Give a GGUF file: kernmill {command} model.gguf.")
    if None not in (given.path, given.model):
        raise SettingError(f"{command}: two models, {given.path} and -m {given.model}. Give one.")
    given.model = given.path or given.model
    return given


def _spelled(command: str, words: Iterable[str]) -> list[str]:
    """The words with each value joined to the long name of its option: argparse would take `-ngl` for `-n gl`, and a
    prompt such as `-x` for an option."""
    rows = {name: row for row in _TABLES[command] for name in row.names.split()}
    made, left = list[str](), iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        row = rows.get(name)
        if word == "--":
            return [*made, word, *left]
        if row is None and word.startswith("-") and word not in ("-h", "--help"):
            raise SettingError(f"{command}: there is no option {name}. {_instead(command, name, rows)}")
        if row is None or row.reads is None:
            made.append(word)
        else:
            made.append("=".join((row.long, *([value] if equals else islice(left, 1)))))
    return made


def _instead(command: str, name: str, known: Mapping[str, Option]) -> str:
    """What to write in place of an option that there is not."""
    for names, sentence in _OTHERS:
        if any(name == one or name.startswith(f"{one}-") for one in names.split()):
            return sentence
    if name[:2] in known and re.fullmatch(r"-?[\d.,]+", name[2:]):
        return f"Write {name[:2]} {name[2:]}."
    import difflib  # nothing else needs it

    close = difflib.get_close_matches(name, known, 1)
    return f"{f'Is it {close[0]}? ' if close else ''}kernmill {command} --help lists all."


def cache_type(given: argparse.Namespace) -> str:
    """The type of keys and values.

    Raises:
        SettingError: two types.
    """
    keys, values = given.cache_type, given.cache_type_v
    if None not in (keys, values) and keys != values:
        raise SettingError(f"-ctk {keys} and -ctv {values}: keys and values are kept in one type. Give it to both.")
    return str(keys or values or "f32")


# --- the prompt ------------------------------------------------------------------------------------------------------
def written_prompt(given: argparse.Namespace) -> str | None:
    """The text of -p or -f, or what comes through a pipe; None: there is none.

    Raises:
        SettingError: both options.
        FormatError: a file that cannot be read.
    """
    if None not in (given.prompt, given.file):
        raise SettingError("run: -p and -f are both a prompt. Give one of them.")
    if given.file is not None:
        try:
            return _without_end(Path(given.file).read_bytes())
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            why = getattr(error, "strerror", None) or error
            raise FormatError(f"{given.file}: cannot be read: {why}. Give the path of a text.") from None
    if given.prompt is not None or given.chat or sys.stdin.isatty():
        return None if given.prompt is None else typed_text(given.prompt, given)
    return _without_end(sys.stdin.buffer.read()) or None


def _without_end(raw: bytes) -> str:
    """A text that came as bytes, without a line's end at its end, as llama.cpp reads it."""
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


_ESCAPE = re.compile(rb"""\\(x[0-9a-fA-F]{1,2}|[nrt'"\\])""")
_MEANINGS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def typed_text(text: str, given: argparse.Namespace) -> str:
    """A text of the command line: a shell has no easy way to write a line's end, so `\\n` is one, as in llama.cpp."""
    if given.no_escape:
        return text
    raw = text.encode("utf-8", "surrogateescape")
    found = _ESCAPE.sub(lambda match: _MEANINGS.get(match[1]) or bytes([int(match[1][1:], 16)]), raw)
    return found.decode("utf-8", "surrogateescape")
