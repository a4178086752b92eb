"""The options of `kernmill run`, `serve` and `bench`: a row each, with llama.cpp's names as aliases; replies for its
other options; and the prompt text."""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernmill.ir import FormatError, LazyModule, SettingError

__all__ = [
    "BENCH",
    "QUANTIZE",
    "RUN",
    "SERVE",
    "Option",
    "cache_types",
    "check_path",
    "from_hub",
    "ignored_splits",
    "parse",
    "read",
    "typed_text",
    "whole_number",
    "written_prompt",
]


_hub: Any = LazyModule("kernmill.llm.hub")


class Option(NamedTuple):
    """A row: names, a parser of the value (None: no value), the default, the meaning, and the placeholder of the
    value."""

    names: str
    reads: Callable[[str], Any] | None
    default: Any
    meaning: str
    value: str | None = None
    repeats: bool = False

    @property
    def long(self) -> str:
        """The name that goes to argparse with a value."""
        return next(name for name in self.names.split() if name.startswith("--"))

    @property
    def help(self) -> str:
        """Its meaning, and the default where it says something."""
        shown = str(self.default).strip("[]")
        return self.meaning if self.default in (None, False, "", ()) else f"{self.meaning} (default {shown})"


def whole_number(words: str, least: int, none: Sequence[int] = ()) -> Callable[[str], int | None]:
    """Return a parser of integers from `least` on; those in `none` mean no limit, or no choice: None."""

    def reads(text: str) -> int | None:
        value = int(text)
        if value < least and value not in none:
            why = f"neither a {words} nor {none[0]}" if none else f"not {least} or more"
            raise argparse.ArgumentTypeError(f"{text} is {why}")
        return None if value in none else value

    reads.__name__ = words  # argparse's name of it if int() rejects a string
    return reads


def _list_of(reads: Callable[[str], int | None]) -> Callable[[str], list[int | None]]:
    def read_all(text: str) -> list[int | None]:
        return [reads(part) for part in text.split(",")]

    read_all.__name__ = "list of numbers"
    return read_all


def _bias(text: str) -> tuple[int, float]:
    """Parse a token id and the bias of its logit, such as 15043+1.5."""
    found = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        bias = float(found[2]) if found else math.nan
    except ValueError:
        bias = math.nan
    if found is None or math.isnan(bias):
        raise argparse.ArgumentTypeError(f"{text!r}: must be an id, a sign and a number, such as 15043-1")
    return int(found[1]), bias


def _list_of_shares(text: str) -> tuple[float, ...]:
    """Parse numbers such as 3,1."""
    shares = tuple(float(part) for part in text.split(","))
    if not all(0 <= share < math.inf for share in shares) or not any(shares):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers from 0 on, and not all 0")
    return shares


_list_of_shares.__name__ = "list of numbers"


def _gpu_layers(text: str) -> int | None:
    """Parse a count (negative: all), or llama.cpp's words: auto, all."""
    return {"auto": None, "all": -1}[text] if text in ("auto", "all") else int(text)


_gpu_layers.__name__ = "integer, auto or all"


def _override(text: str) -> tuple[str, str]:
    """Parse a regular expression and a device, such as ffn_.*=CL."""
    pattern, equals, device = text.rpartition("=")
    if not (pattern and equals and device):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a regular expression, = and a device: blk.*ffn=CL")
    return pattern, device


def _one_of(*words: str) -> Callable[[str], str]:
    def chosen(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r}: must be one of {', '.join(words)}")
        return text

    return chosen


def _file_and_scale(text: str) -> tuple[str, float]:
    """Parse a path and a scale, such as lora.gguf:0.5."""
    path, colon, scale = text.rpartition(":")
    try:
        return path, float(scale) if colon and path else float("bad")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a path, : and a number, such as lora.gguf:0.5") from None


def _range(text: str) -> tuple[int, int]:
    """Two integers, with a space or a comma between them."""
    words = text.replace(",", " ").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not two layers, such as 8 20")
    return int(words[0]), int(words[1])


def _two_lengths(text: str) -> tuple[int, int]:
    """Two lengths with a comma between them."""
    words = text.split(",")
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not two lengths, such as 512,128")
    return int(words[0]), int(words[1])


def _values(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r}: must be a JSON object, such as {{"enable_thinking": false}}')
    return found


def _names_of_steps(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _device(text: str) -> str:
    """llama.cpp's none: no layer leaves the CPU."""
    return "LLVM" if text.lower() == "none" else text


_COUNT, _THREADS = whole_number("integer", 1), whole_number("number of threads", 1, none=(-1, 0))
_TOKENS = whole_number("number of tokens", 0)

# fmt: off
_MODEL = Option("-m --model", str, None, "a GGUF file, the first part of a split one, or the folder of a Hugging Face model; also without -m", "FILE")
HUB = (
    Option("-hf -hfr --hf-repo", str, None, "a model of the Hugging Face hub, downloaded once: owner/name, or owner/name:Q8_0 for one of its files", "NAME"),
    Option("-hff --hf-file", str, None, "the file of it", "FILE"),
    Option("-hft --hf-token", str, None, "token for it; default: the variable HF_TOKEN", "TOKEN"),
)
_SHARED = (
    Option("--cache-type --cache-type-k -ctk", str.lower, None, "type of cached keys, and of values without -ctv: f32 (default), f16, bf16, or blocks: q8_0 (a quarter of f32), q4_0, ..", "TYPE"),
    Option("--cache-type-v -ctv", str.lower, None, "type of cached values, and of keys without -ctk", "TYPE"),
    Option("-b --batch-size --ubatch-size -ub", _COUNT, None, "prompt tokens per batch (default: 64, or 512 with a matrix unit)", "N"),
    Option("--device -dev", _device, None, "such as LLVM, or several over which the layers are split: CL,LLVM; none: the CPU; default: the setting DEVICE", "NAME"),
)
_SPLIT = (
    Option("-ngl --gpu-layers --n-gpu-layers", _gpu_layers, None, "of several devices: how many of the last layers, and the output, leave the CPU, or all; auto: the fastest split that fits", "N"),
    Option("-ts --tensor-split", _list_of_shares, (), "shares of the layers, one for each device that is not the CPU, or for each rank, such as 3,1", "N,N"),
    Option("-sm --split-mode --split", _one_of("layer", "tensor", "none"), "layer", "layer: layers over all devices, or over the ranks of mpirun; none: on one device (-mg); tensor: heads and rows of each layer over ranks", "MODE"),
    Option("--list-devices", None, False, "print the devices and exit"),
    Option("-mg --main-gpu", int, 0, "position of the device for -sm none", "N"),
    Option("-ot --override-tensor", _override, None, "tensors whose names match a regular expression go to a device; may be repeated", "REGEX=DEVICE", repeats=True),
    Option("-cmoe --cpu-moe", None, False, "weights of experts stay on the CPU"),
    Option("-ncmoe --n-cpu-moe", _TOKENS, None, "those of the first N layers", "N"),
    Option("-nkvo --no-kv-offload", None, False, "keys and values stay on the CPU"),
)
_TEMPLATE = (
    Option("--chat-template", str, None, "Jinja source that replaces the template of the file", "TEXT"),
    Option("--chat-template-file", str, None, "the same, from a file", "FILE"),
    Option("--chat-template-kwargs", _values, None, "variables of the template, such as {\"enable_thinking\": false}", "JSON"),
    Option("--reasoning -rea", _one_of("on", "off", "auto"), "auto", "on, off: the variable enable_thinking of the template", "WORD"),
    Option("--reasoning-effort", str, None, "the variable reasoning_effort of the template", "LEVEL"),
)
_ADAPTERS = (
    Option("--lora", str, None, "a LoRA adapter, a GGUF file; may be repeated", "FILE", repeats=True),
    Option("--lora-scaled", _file_and_scale, None, "the same with a scale; may be repeated", "FILE:SCALE", repeats=True),
    Option("--control-vector", str, None, "a control vector, a GGUF file; may be repeated", "FILE", repeats=True),
    Option("--control-vector-scaled", _file_and_scale, None, "the same with a scale; may be repeated", "FILE:SCALE", repeats=True),
    Option("--control-vector-layer-range", _range, None, "the first and the last layer that control vectors change, such as 8 20; default: all of their files", "FIRST LAST"),
)
_DRAFT = (
    Option("-md --model-draft --spec-draft-model", str, None, "a smaller model of the same vocabulary that guesses the next tokens", "FILE"),
    Option("--spec-type", _one_of("none", "ngram-simple"), None, "ngram-simple: guess the next tokens by what followed the last ones before", "KIND"),
    Option("--draft-max --draft --draft-n --spec-draft-n-max", _COUNT, None, "most guesses that one step checks, up to 63 (default 7)", "N"),
    Option("--draft-min --draft-n-min --spec-draft-n-min", _TOKENS, None, "with fewer guesses none is checked (default 0)", "N"),
    Option("--draft-p-min --spec-draft-p-min", float, None, "a draft model ends its guesses before a token of less probability (default 0.75)", "P"),
)
_KEPT = Option("--keep-weights", _TOKENS, None, "keep interleaved weights in the cache folder, up to this many MiB of all models: a later start maps them, and checks their bytes while it runs; default: the setting KEEP_WEIGHTS_MB", "MIB")
_SHIFT = (
    Option("--context-shift", None, False, "a full context does not end a text: half of its tokens behind the kept ones are dropped"),
    Option("--keep", int, None, "tokens that are kept then, in addition to the begin token; -1: the prompt (default 0)", "N"),
)
_SAMPLING = (
    Option("--temperature --temp", float, 0.8, "sampling temperature, 0 = greedy", "N"),
    Option("--top-k", int, 40, "sample from the k most likely tokens, 0 or less = off", "N"),
    Option("--top-p", float, 0.95, "nucleus sampling: smallest set of tokens with this total probability, 1 = off", "N"),
    Option("--min-p", float, 0.05, "drop tokens below this fraction of the best one's probability, 0 = off", "N"),
    Option("--typical --typical-p", float, 1.0, "only tokens of the most typical information with this total probability, 1 = off", "N"),
    Option("--top-n-sigma --top-nsigma", float, -1.0, "only logits within N standard deviations of the best one, 0 or less = off", "N"),
    Option("--xtc-probability", float, 0.0, "how often all likely tokens but the least of them are left out", "N"),
    Option("--xtc-threshold", float, 0.1, "the probability of likely tokens for it; more than 0.5 = off", "N"),
    Option("--dynatemp-range", float, 0.0, "the temperature varies by this much with the model's uncertainty", "N"),
    Option("--dynatemp-exp", float, 1.0, "how it varies", "N"),
    Option("--mirostat", int, 0, "1 or 2: keep the surprise even, instead of the other steps", "N"),
    Option("--mirostat-lr", float, 0.1, "how fast it adapts", "N"),
    Option("--mirostat-ent", float, 5.0, "the surprise, in bits", "N"),
    Option("--samplers", _names_of_steps, None, "the steps and their order, with ; between them; default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", "NAMES"),
    Option("--sampler-seq --sampling-seq", str, None, "the same by a letter each: edskypmxt", "LETTERS"),
    Option("--repeat-penalty", float, 1.0, "1: none", "N"),
    Option("--repeat-last-n", int, 64, "recent tokens that penalties consider; 0 = none, -1 = all", "N"),
    Option("--presence-penalty", float, 0.0, "subtracted from the logits of recent tokens", "N"),
    Option("--frequency-penalty", float, 0.0, "subtracted once per occurrence of a recent token", "N"),
    Option("--dry-multiplier", float, 0.0, "penalty for continuing a repetition, 0 = off", "N"),
    Option("--dry-base", float, 1.75, "its growth with each further token", "N"),
    Option("--dry-allowed-length", int, 2, "tokens of a repetition that are not penalized", "N"),
    Option("--dry-penalty-last-n", int, -1, "recent tokens that are searched for repetitions; 0 = none, -1 = all", "N"),
    Option("--dry-sequence-breaker", str, None, r"text that ends repetitions, instead of newline : \" *; none: nothing does; may be repeated", "TEXT", repeats=True),
    Option("-l --logit-bias", _bias, None, "add to the logit of a token, such as 15043+1.5, 15043-1 or 15043-inf; may be repeated", "ID(+/-)BIAS", repeats=True),
)
_TEXT = (
    Option("--stop -r --reverse-prompt", str, None, "end a text before this string; may be repeated", "TEXT", repeats=True),
    Option("--grammar", str, None, "text must follow a grammar in GBNF; needs the extra grammar", "GBNF"),
    Option("--grammar-file", str, None, "the same, from a file", "FILE"),
    Option("-j --json-schema", str, None, "text must be JSON of a schema; {} is any JSON", "SCHEMA"),
    Option("-jf --json-schema-file", str, None, "the same, from a file", "FILE"),
    Option("--ignore-eos", None, False, "never choose the tokens that end a text"),
)
RUN = (
    _MODEL,
    *HUB,
    Option("-p --prompt", str, None, "prompt; with --chat the first message. Default: stdin, if it is a pipe", "TEXT"),
    Option("-f --file", str, None, "read the prompt from a file (one trailing newline is removed)", "FILE"),
    Option("--no-escape", None, False, r"\n, \t, \\, \" and \x41 in -p, --system and -r are not escape sequences"),
    Option("-n --n-predict --predict", whole_number("number of tokens", 0, none=(-1, -2)), None, "most tokens to generate; -1, -2: until the text ends or the context is full (default)", "N"),
    Option("-c --ctx-size", _TOKENS, None, "tokens of context; 0: what the model was trained on. Default: just enough for -p and -n, else what the model was trained on, at most 4096", "N"),
    Option("--chat --conversation -cnv -i --interactive -if --interactive-first", None, False, "hold a conversation with the chat template of the file (ChatML if it has none); each line of stdin is a message; one that ends with \\ goes on in the next line; /clear forgets the conversation, /exit ends it"),
    Option("--system --system-prompt -sys", str, "", "system message (with --chat)", "TEXT"),
    Option("--system-prompt-file -sysf", str, None, "the same, from a file", "FILE"),
    *_TEMPLATE,
    Option("--single-turn -st", None, False, "end after one message and its answer (with --chat)"),
    Option("--no-display-prompt", None, False, "print only the generated text"),
    *_SAMPLING,
    *_TEXT,
    Option("-s --seed", int, None, "random seed; -1 = random (default)", "N"),
    *_ADAPTERS,
    *_DRAFT,
    *_SHIFT,
    _KEPT,
    Option("--quantize", str, None, "quantize the weights while they are loaded, such as Q8_0: a mix of kernmill quantize; no file is written", "MIX"),
    Option("--prompt-cache", str, None, "a file that keeps what the model computed of the prompt, and is read by the next run", "FILE"),
    Option("--prompt-cache-all", None, False, "it keeps the generated text as well"),
    Option("--prompt-cache-ro", None, False, "it is read and not written"),
    Option("-t --threads", _THREADS, None, "number of threads; 0, -1 = the setting THREADS (default)", "N"),
    *_SHARED,
    *_SPLIT,
)
SERVE = (
    Option("-m --model", str, None, "a GGUF file, also without -m; several are served by their names", "FILE", repeats=True),
    *HUB,
    Option("--models-dir", str, None, "serve all GGUF files of a folder; each is loaded when it is asked for", "FOLDER"),
    Option("--models-max", _COUNT, 1, "most models in memory; the least recently used one goes first", "N"),
    Option("--models-memory", _COUNT, None, "most memory of loaded models, by the sizes of their files", "MIB"),
    Option("--sleep-idle-seconds", _COUNT, None, "drop a model that nobody has used for this time", "N"),
    Option("-a --alias", str, None, "the name of the model for clients; default: that of the file", "NAME"),
    Option("--host", str, "127.0.0.1", "address to listen on; another than loopback needs an API key", "ADDRESS"),
    Option("--port", whole_number("port", 0), 8080, "port to listen on; 0: a free one", "N"),
    Option("--api-key", str, None, "key that clients must send; several with commas. Default: the variable KERNMILL_API_KEY", "KEY", repeats=True),
    Option("--api-key-file", str, None, "a file with a key on each line", "FILE"),
    Option("--api-prefix", str, "", "path before all paths, such as /llm", "PATH"),
    Option("--cors-origins", str, None, "pages of these origins may call the server; several with commas; default: none", "ORIGIN"),
    Option("-c --ctx-size", _TOKENS, None, "tokens of context of each text; 0: what the model was trained on. Default: the same, at most 4096", "N"),
    Option("-np --parallel", _COUNT, 4, "slots: texts at once", "N"),
    Option("--queue", _COUNT, 64, "requests that wait for a slot; more get status 429", "N"),
    Option("--chunk", _COUNT, 256, "most tokens of a prompt that are read between two tokens of the others", "N"),
    Option("--max-body", _COUNT, 8, "most MiB of a request", "N"),
    Option("-to --timeout", whole_number("number of seconds", 0), 0, "seconds after which an answer ends; 0 = no limit", "N"),
    Option("--stall-timeout", _COUNT, 60, "seconds that a client may leave text unread", "N"),
    Option("--sse-ping-interval", _COUNT, 15, "seconds between comments in a stream without text", "N"),
    Option("--drain", whole_number("number of seconds", 0), 30, "seconds that running answers have after SIGTERM", "N"),
    *_TEMPLATE,
    Option("--no-webui --no-ui", None, False, "no page at /"),
    Option("--no-slots", None, False, "no /slots"),
    Option("--no-metrics", None, False, "no /metrics"),
    Option("--slot-save-path", str, None, "clients may save the texts of slots as files of this folder, and restore them", "FOLDER"),
    *_TEXT,
    Option("-n --n-predict --predict", whole_number("number of tokens", 0, none=(-1, -2)), None, "most tokens of an answer; -1, -2: until the text ends or the context is full (default)", "N"),
    Option("--no-escape", None, False, r"\n, \t, \\, \" and \x41 in -r are not escape sequences"),
    Option("--reasoning-format", _one_of("auto", "deepseek", "none"), "auto", "auto, deepseek: reasoning is reasoning_content; none: it stays in the text", "FORM"),
    Option("-s --seed", int, None, "random seed of requests without one; -1 = random (default)", "N"),
    *_ADAPTERS,
    *_DRAFT,
    *_SHIFT,
    _KEPT,
    Option("--no-warmup", None, False, "begin at once; each kernel is built when first needed, while all texts wait"),
    Option("-v --verbose", None, False, "print a line for each request, without its text"),
    Option("-t --threads", _THREADS, None, "number of threads; 0, -1 = the setting THREADS (default)", "N"),
    *_SAMPLING,
    *(row for row in _SHARED if not row.names.startswith("-b ")),
    *_SPLIT,
)
BENCH = (
    _MODEL,
    *HUB,
    Option("-p --n-prompt", _list_of(_TOKENS), [512], "prompt tokens; 0 = none", "N,N"),
    Option("-n --n-gen", _list_of(_TOKENS), [128], "tokens to generate; 0 = none", "N,N"),
    Option("-pg --pg", _two_lengths, None, "a prompt of P tokens, then N tokens, in one row; may be repeated", "P,N", repeats=True),
    Option("-d --n-depth", _list_of(_TOKENS), [0], "tokens that are in the context before each test", "N,N"),
    Option("-r --repetitions", _COUNT, 5, "number of samples", "N"),
    Option("-o --output", _one_of("md", "csv", "json", "jsonl"), "md", "md, csv, json or jsonl", "FORM"),
    Option("-t --threads", _list_of(_COUNT), None, "default: the setting THREADS", "N,N"),
    *_SHARED,
)

QUANTIZE = (
    *_ADAPTERS[:2],
    Option("--requantize --allow-requantize", None, False, "accept quantized weights as input"),
    Option("--tensor-type", str, None, "the type of the tensors whose names a regular expression is found in; may be repeated", "PATTERN=TYPE", repeats=True),
    Option("--output-tensor-type", str, None, "the type of output.weight, such as Q8_0", "TYPE"),
    Option("--token-embedding-type", str, None, "the type of token_embd.weight", "TYPE"),
    Option("--leave-output-tensor", None, False, "output.weight is unchanged"),
    Option("--pure", None, False, "all matrices get the base type of MIX"),
    Option("--keep-split", None, False, "write as many files as IN has; OUT is their prefix"),
    Option("--override-kv", str, None, "change metadata: int, float, bool or str; may be repeated", "KEY=KIND:VALUE", repeats=True),
    Option("--dry-run", None, False, "only print the types and sizes of all tensors"),
    Option("--imatrix", str, None, "an importance matrix, of kernmill imatrix: errors are weighed by it", "FILE"),
    Option("--device", str, None, "such as LLVM or PYTHON; default: the setting DEVICE", "NAME"),
)

_ON_OFF = re.compile(r"(on|off|auto|true|false|enabled|disabled|[01](,[01])*)", re.IGNORECASE)  # values of switches
_ANY = re.compile("")  # a value that does not matter
_0, _1 = (re.compile(rf"{n}(\.0*)?") for n in (0, 1))
_DRAFTS = "-td --threads-draft -tbd --threads-batch-draft --spec-draft-threads --spec-draft-threads-batch -Cd -Crd -Cbd -otd -ncmoed -devd -ngld -ctkd -ctvd " + " ".join(f"--spec-draft-{one} --{one}-draft" for one in ["cpu-mask", "cpu-range", "cpu-strict", "prio", "poll", "cpu-mask-batch", "cpu-strict-batch", "prio-batch", "poll-batch", "override-tensor", "n-cpu-moe", "device"]) + " --spec-draft-ncmoe --spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft --spec-draft-type-k --cache-type-k-draft --spec-draft-type-v --cache-type-v-draft --spec-draft-p-split --draft-p-split"
_LOOKUPS = "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match -lcs --lookup-cache-static -lcd --lookup-cache-dynamic " + " ".join(f"--spec-ngram-{kind}-{one}" for kind in ("simple", "map-k", "map-k4v") for one in ("size-n", "size-m", "min-hits"))
_HARMLESS = (  # names of llama.cpp's options, the values that change nothing here, and why (None: see _ON_OFF)
    ("-ngl --gpu-layers --n-gpu-layers -sm --split-mode -mg --main-gpu -ts --tensor-split -ot --override-tensor -ncmoe --n-cpu-moe", _ANY, "kernmill bench chooses the split"),
    ("-cmoe --cpu-moe -nkvo --no-kv-offload", None, "kernmill bench chooses the split"),
    ("--rpc -rpc -fitt --fit-target -fitc --fit-ctx", _ANY, "a split fits the free memory of its devices"),
    ("-kvo --kv-offload --op-offload --no-op-offload -nopo -fit --fit", None, "a split fits the free memory of its devices"),
    ("--numa", _ANY, "weights are copied once"),
    ("--mmap --no-mmap -mmp --mlock -dio --direct-io -ndio --no-direct-io --repack --no-repack -nr --no-host --check-tensors", None, "weights are copied once"),
    ("-lm --load-mode", _ANY, "weights are copied once"),
    ("-dt --defrag-thold -ncffn --n-cpu-ffn", _ANY, "the kernels are made for the model"),
    ("-fa --flash-attn --swa-full -kvu --kv-unified -no-kvu --no-kv-unified --warmup --no-warmup -bs --backend-sampling", None, "the kernels are made for the model"),
    ("-tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --delay", _ANY, "-t N is for prompts and for tokens"),
    ("-no-cnv --no-conversation -e --escape --jinja --display-prompt --no-context-shift -cb --cont-batching -no-cb --no-cont-batching --no-mmproj --offline --no-cache-prompt --verbose-prompt", None, "this is the default"),
    ("-np --parallel -cram --cache-ram -ctxcp --ctx-checkpoints", _ANY, "one text has the whole context"),
    ("--log-file -lv --verbosity --log-verbosity", _ANY, "text goes to stdout, everything else to stderr"),
    ("--color -co --colors --log-colors --log-disable --log-prefix --log-timestamps -v --verbose --log-verbose --simple-io --perf --no-perf --show-timings --no-show-timings --progress", None, "text goes to stdout, everything else to stderr"),
    ("-lzm --lazy-mode", _ANY, "weights are copied once"),
    ("-nocb --cache-idle-slots --no-cache-idle-slots --no-mmproj-auto --no-mmproj-offload --mmproj-offload --no-skip-chat-parsing", None, "this is the default"),
    ("-cms --checkpoint-min-step --swa-checkpoints --kv-unified-per-slot", _ANY, "the kernels are made for the model"),
    ("--log-jsonl --no-log-jsonl --no-log-prefix --no-log-timestamps", None, "text goes to stdout, everything else to stderr"),
    (_DRAFTS, _ANY, "a draft model runs as the model does"),
    ("--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-default", None, "a draft model runs as the model does"),
    (_LOOKUPS, _ANY, "guesses change no text; --draft-max is their number"),
    ("--reasoning-budget", re.compile("-1"), "this is the default"),
    ("-gan --grp-attn-n", _1, "this value disables it"),
    ("-embd --embeddings", _0, "this value disables it"),
)
_HARMLESS_SERVE = (
    ("-b --batch-size -ub --ubatch-size --threads-http --slot-prompt-similarity -sps", _ANY, "the server chooses it"),
    ("--cache-reuse", _0, "this value disables it"),
    ("--metrics --props --slots --embedding --embeddings --rerank --reranking --webui --ui --cache-prompt -e --escape", None, "this is the default"),
    ("--models-autoload --no-prefill-assistant --no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent --no-cors-credentials", None, "this is the default"),
    ("--tags", _ANY, "clients see the name only"),
    ("--spm-infill", None, "there is no /infill"),
    ("--embd-normalize", re.compile("2"), "this is the default"),
)
_OTHERS = (  # names of llama.cpp (also with a -suffix) that would change the result, and the remedy
    ("--adaptive", "Choose by --temp, --top-k, --top-p, --min-p and penalties; in Python, by your own sampler."),
    ("-ins --instruct -cml --chatml -mli --multiline-input", "A conversation is --chat; a line that ends with \\ goes on in the next one."),
    ("--pooling", "The file says how vectors are pooled: kernmill show."),
    ("--embd-normalize --embd-output-format", "Vectors are kernmill embed's."),
    ("--ssl", "Use a proxy for TLS."),
    ("--path --ui --webui", "The server has one page, whose settings are in the browser."),
    ("--tools --mcp-servers --ui-mcp-proxy --webui-mcp-proxy -ag --agent", "The server runs no tools: it gives their calls to the client."),
    ("--cache-reuse", "A prompt is read again from the first token that differs."),
    ("--cors", "Pages of other origins are allowed by --cors-origins only."),
    ("--models-preset --no-models-autoload", "Models are given by paths or --models-dir; each is loaded when it is asked for."),
    ("--log-prompts", "Prompts and answers are not logged."),
    ("--lora-init-without-apply", "Give the scale with --lora-scaled FILE:0."),
    ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "Download the GGUF file, and give its path: -md FILE."),
    ("--spec-synth", "Give a draft with -md FILE or --spec-type ngram-simple."),
    ("--rerank --reranking", "Scores are kernmill rerank's."),
    ("--in-prefix --in-suffix", "Put it into the prompt."),
    ("-sp --special", "Special tokens are not printed."),
    ("--no-jinja --skip-chat-parsing --reasoning-budget --reasoning-preserve", "The template decides: --chat-template-kwargs '{\"enable_thinking\": false}'."),
    ("-bf --binary-file", "Give a text with -f FILE."),
    ("-mu --model-url -dr --docker-repo", "Download the GGUF file, and give its path: -m FILE."),
    ("-mm -mmu -mmdev --mmproj --image --audio --video --mtmd --media", "Only the model of the file runs, on text, without additions."),
    ("--rope --yarn -gan --grp-attn -gaw --override-kv", "The file says how the model computes. Change the file."),
    ("-embd --embeddings", "Vectors are kernmill embed's; only prompts and generated tokens are measured."),
    ("-oe --output-err", "Write 2> FILE."),
    ("--include-weights --exclude-weights", "An importance matrix is used for all matrices that it has."),
    ("--tensor-type-file", "Give each type with --tensor-type PATTERN=TYPE."),
    ("--prune-layers", "kernmill quantize writes all layers."),
)
# fmt: on
_TABLES = {"run": RUN, "serve": SERVE, "bench": BENCH, "quantize": QUANTIZE}


def read(command: str, words: Sequence[str], **texts: str) -> argparse.Namespace:
    """Parse the words after a command with a model. `texts`: description and epilog of its help.

    Raises:
        SettingError: an unknown option, no model, or two.
    """
    given = parse(
        command,
        words,
        {"path": {"nargs": "?", "metavar": "MODEL", "help": _MODEL.meaning.replace("also without", "also as")}},
        **texts,
    )
    if (path := from_hub(command, given)) is not None:
        if {given.path, given.model} != {None}:
            raise SettingError(f"{command}: two models, {given.path or given.model} and -hf {given.hf_repo}. Give one.")
        given.path = path
    if given.path is None and given.model is None:
        raise SettingError(f"{command}: no model. Give a GGUF file: kernmill {command} model.gguf.")
    if None not in (given.path, given.model):
        raise SettingError(f"{command}: two models, {given.path} and -m {given.model}. Give one.")
    given.model = given.model if given.path is None else given.path
    check_path(command, given.model, "Give a GGUF file.")
    return given


def from_hub(command: str, given: argparse.Namespace) -> str | None:
    """Return the path of the model that -hf names; None: it is not given.

    Raises:
        SettingError: the hub does not give it.
    """
    if given.hf_repo is None:
        if given.hf_file is not None:
            raise SettingError(f"{command}: --hf-file {given.hf_file} is a file of a repository. Name it with -hf.")
        return None
    return str(_hub.downloaded(given.hf_repo, given.hf_file, given.hf_token))


def parse(command: str, words: Sequence[str], positional: Mapping[str, Any], **texts: str) -> argparse.Namespace:
    """Parse the words after a command by its table; options of llama.cpp that change nothing are named on stderr.

    Raises:
        SettingError: an unknown option, or a word too many.
    """
    parser = argparse.ArgumentParser(prog=f"kernmill {command}", allow_abbrev=False, **texts)  # type: ignore[arg-type]
    for name, how in positional.items():
        parser.add_argument(name, **how)
    add(parser, _TABLES[command])
    given, rest = parser.parse_known_args(_spelled(command, words))
    if rest:
        said = f" Give a text with -p: kernmill {command} model.gguf -p TEXT." if command == "run" else ""
        raise SettingError(f"{command}: {' '.join(map(repr, rest))}: one word too many.{said}")
    return given


def add(parser: argparse.ArgumentParser, rows: Iterable[Option]) -> None:
    """Add the options of a table."""
    for row in rows:
        what: dict[str, Any] = {"action": "store_true"}
        if row.reads is not None:
            what = {"type": row.reads, "metavar": row.value, "action": "append" if row.repeats else "store"}
        parser.add_argument(*row.names.split(), default=row.default, help=row.help.replace("%", "%%"), **what)


def check_path(command: str, path: str | None, remedy: str) -> None:
    """A path is not empty, as an unset variable of a shell would make it.

    Raises:
        SettingError: it is empty.
    """
    if path == "":
        raise SettingError(f"{command}: the path is empty: is a variable of the shell unset? {remedy}")


def _spelled(command: str, words: Iterable[str]) -> list[str]:
    """Join each value to the long name of its option: argparse would parse `-ngl` as `-n gl`, and a prompt such as
    `-x` as an option."""
    rows = {name: row for row in _TABLES[command] for name in row.names.split()}
    made, left = list[str](), deque(words)
    while left:
        word = left.popleft()
        name, equals, value = word.partition("=")
        row = rows.get(name)
        if word == "--":
            return [*made, word, *left]
        if row is None and word.startswith("-") and word not in ("-h", "--help"):
            _ignore(command, name, value if equals else None, left, rows)
        elif row is None or row.reads is None:
            made.append(word)
        else:
            count = len(row.value.split()) if row.value else 1
            values = [value] if equals else [left.popleft() for _ in range(min(count, len(left)))]
            made.append("=".join((row.long, " ".join(values))) if values else row.long)
    return made


def _ignore(command: str, name: str, value: str | None, left: deque[str], known: Mapping[str, Option]) -> None:
    """Skip an option of llama.cpp that changes nothing, and its value, with a line on stderr.

    Raises:
        SettingError: any other option.
    """
    for names, values, why in (*(_HARMLESS_SERVE if command == "serve" else ()), *_HARMLESS):
        if name not in names.split() or command == "quantize":
            continue
        takes = values or _ON_OFF
        if (value is None and left and takes.fullmatch(left[0])) or (values is _ANY and value is None and left):
            value = left.popleft()
        if values is not None and values is not _ANY and (value is None or not values.fullmatch(value)):
            break  # it is on
        print(f"kernmill: {command}: {name} is ignored: {why}.", file=sys.stderr)
        return
    raise SettingError(f"{command}: there is no option {name}. {_instead(command, name, known)}")


def _instead(command: str, name: str, known: Mapping[str, Option]) -> str:
    """Return the replacement of an unknown option."""
    for names, sentence in _OTHERS:
        if any(name == one or name.startswith(f"{one}-") for one in names.split()):
            return sentence
    if name[:2] in known and re.fullmatch(r"-?[\d.,]+", name[2:]):
        return f"Write {name[:2]} {name[2:]}."
    import difflib  # nothing else needs it

    close = difflib.get_close_matches(name, known, 1)
    return f"{f'Is it {close[0]}? ' if close else ''}kernmill {command} --help lists all."


_SPLITS = {
    "gpu_layers": "-ngl", "tensor_split": "-ts", "override_tensor": "-ot", "cpu_moe": "-cmoe", "n_cpu_moe": "-ncmoe",
    "no_kv_offload": "-nkvo", "main_gpu": "-mg",
}  # fmt: skip


def ignored_splits(command: str, given: argparse.Namespace, why: str, *, but: str = "") -> None:
    """Print which options of a split mean nothing; not of that one which does."""
    for field, name in _SPLITS.items():
        if name != but and getattr(given, field) not in (None, (), False, 0):
            print(f"kernmill: {command}: {name} is ignored: {why}.", file=sys.stderr)


def cache_types(given: argparse.Namespace) -> tuple[str, str]:
    """The types of keys and of values: one that is given alone is for both."""
    keys, values = given.cache_type, given.cache_type_v
    return keys or values or "f32", values or keys or "f32"


# --- the prompt ------------------------------------------------------------------------------------------------------
def written_prompt(given: argparse.Namespace) -> str | None:
    """Return the text of -p or -f, or from a pipe; None: there is none.

    Raises:
        SettingError: both options.
        FormatError: a file that cannot be read.
    """
    if None not in (given.prompt, given.file):
        raise SettingError("run: -p and -f are both a prompt. Give one of them.")
    if given.file is not None:
        check_path("run", given.file, "Give the path of a text with -f.")
        try:
            return _without_end(Path(given.file).read_bytes())
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            why = getattr(error, "strerror", None) or error
            raise FormatError(f"{given.file}: cannot be read: {why}. Give the path of a text.") from None
    if given.prompt is not None or given.chat or sys.stdin.isatty():
        return None if given.prompt is None else typed_text(given.prompt, given)
    return _without_end(sys.stdin.buffer.read()) or None


def _without_end(raw: bytes) -> str:
    """Decode a text without its trailing newline, as llama.cpp reads it."""
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


_ESCAPE = re.compile(rb"""\\(x[0-9a-fA-F]{1,2}|[nrt'"\\])""")
_MEANINGS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def typed_text(text: str, given: argparse.Namespace | None = None) -> str:
    """Unescape a text of the command line: a shell has no easy way to write a newline, so `\\n` is one, as in
    llama.cpp."""
    if given is not None and given.no_escape:
        return text
    raw = text.encode("utf-8", "surrogateescape")
    found = _ESCAPE.sub(lambda match: _MEANINGS.get(match[1]) or bytes([int(match[1][1:], 16)]), raw)
    return found.decode("utf-8", "surrogateescape")
