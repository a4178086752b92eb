"""`kernmill embed | rerank | tokenize | show`: commands on a model's file that write no text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import Context, FormatError, SettingError, setting

from ..llm import folders
from ..llm.generate import Model
from ..llm.memory_needs import needing_memory
from ..llm.model_file import naming
from ..llm.tokenizer import Tokenizer
from . import options

__all__ = ["run_command"]

_SHOWN = 60  # characters of a value


def _texts(given: argparse.Namespace) -> list[str]:
    """Return the texts of a command line.

    Raises:
        SettingError: there are none. FormatError: a file that cannot be read, or is not in UTF-8.
    """
    texts: list[str] = [*(given.prompt or ())]
    where = given.file
    if where is not None:
        options.check_path(given.name, where, "Give the path of a file with -f.")
        try:
            with open(where, encoding="utf-8") as file:
                texts += file.read().splitlines()
        except (OSError, ValueError) as error:
            raise FormatError(f"{where}: cannot be read: {error}.") from None
    elif not texts and not sys.stdin.isatty():
        try:
            texts = sys.stdin.buffer.read().decode().splitlines()
        except UnicodeDecodeError:
            raise FormatError(f"{given.name}: stdin is not in UTF-8. Convert it with iconv.") from None
    if not texts:
        raise SettingError(f"{given.name}: no text. Give one after the model, or a file with -f.")
    return texts


def _with_model(given: argparse.Namespace, use: Callable[[Any], None]) -> int:
    options.check_path(given.name, given.model, "Give a GGUF file.")
    with (
        Context(THREADS=given.threads or setting("THREADS")),
        needing_memory(given.model, given.ctx_size),
        Model.from_gguf(given.model, capacity=given.ctx_size) as model,
    ):
        use(model)
    return 0


def embed_texts(given: argparse.Namespace) -> int:
    """Print the vector of each text."""
    texts = _texts(given)

    def use(model: Any) -> None:
        normalize = given.embd_normalize == 2
        is_one_by_one = model.architecture.pooling.kind == "none"
        together = (model.embed(text, normalize=normalize) for text in texts) if is_one_by_one else None
        for vector in model.embed(texts, normalize=normalize).numpy() if together is None else together:
            print(json.dumps(vector.tolist()))

    return _with_model(given, use)


def rerank_texts(given: argparse.Namespace) -> int:
    """Print score and text, the best first."""
    if given.query is None:
        raise SettingError("rerank: no query. Give it with -q TEXT.")
    texts = _texts(given)

    def use(model: Any) -> None:
        scores: list[float] = model.rerank(given.query, texts).tolist()
        for score, text in sorted(zip(scores, texts, strict=True), key=lambda pair: -pair[0]):
            print(f"{score:.6f}\t{text}")

    return _with_model(given, use)


def tokenize_texts(given: argparse.Namespace) -> int:
    """Print the ids of each text, and what they are."""
    options.check_path("tokenize", given.model, "Give a GGUF file.")
    texts, file = _texts(given), folders.read_any(given.model)
    with naming(file):
        tokenizer = Tokenizer(file.metadata)
    for text in texts:
        ids = tokenizer.encode(text, add_special=not given.no_bos, parse_special=not given.no_parse_special)
        if given.ids:
            print(json.dumps(ids))
            continue
        for token in ids:
            print(f"{token:7} -> {tokenizer.token_bytes(token).decode('utf-8', 'replace')!r}")
    return 0


def show_file(given: argparse.Namespace) -> int:
    """Print what is in a file."""
    options.check_path("show", given.model, "Give a GGUF file.")
    file = folders.read_any(given.model)
    by_type = _by_type(file)
    if given.json:
        entries = [
            {"name": e.name, "type": e.type.name, "shape": list(e.shape), "bytes": e.stop - e.start}
            for e in file.entries.values()
        ]
        metadata = {key: _plain(value) for key, value in file.metadata.items()}
        print(json.dumps({"metadata": metadata, "types": by_type, "tensors": entries}))
        return 0
    print(f"{given.model}: GGUF version {file.version}, {len(file.metadata)} metadata values, "
          f"{len(file.entries)} tensors")  # fmt: skip
    width = max((len(key) for key in file.metadata), default=0)
    for key, value in file.metadata.items():
        print(f"  {key:{width}}  {_short(value)}")
    print(f"\n{'type':8} {'tensors':>8} {'values':>14} {'MiB':>10} {'bits':>6}")
    for name, (count, values, size) in by_type.items():
        print(f"{name:8} {count:8} {values:14} {size / 2**20:10.2f} {8 * size / max(1, values):6.2f}")
    if given.tensors:
        print()
        for entry in file.entries.values():
            shape = " x ".join(map(str, entry.shape))
            print(f"{entry.name:40} {entry.type.name:8} {shape:24} {(entry.stop - entry.start) / 2**20:10.2f} MiB")
    return 0


def _by_type(file: Any) -> dict[str, tuple[int, int, int]]:
    """Return for each type of tensor: how many, their values, their bytes; the largest first."""
    found: dict[str, tuple[int, int, int]] = {}
    for entry in file.entries.values():
        count, values, size = found.get(entry.type.name, (0, 0, 0))
        numel = 1
        for axis in entry.shape:
            numel *= axis
        found[entry.type.name] = count + 1, values + numel, size + entry.stop - entry.start
    total = tuple(map(sum, zip(*found.values(), strict=True))) if found else (0, 0, 0)
    return dict(sorted(found.items(), key=lambda pair: -pair[1][2])) | {"all": (total[0], total[1], total[2])}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _short(value: Any) -> str:
    """Return a value in one line; of a list its length and its first entries."""
    if isinstance(value, str) or not hasattr(value, "__len__"):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.. ({len(value)} characters)"
    text = ", ".join(json.dumps(one, ensure_ascii=False) for one in list(value[:4]))
    return f"[{text[:_SHOWN]}{', ..' if len(value) > 4 else ''}] ({len(value)} entries)"


_COMMANDS = {"embed": embed_texts, "rerank": rerank_texts, "tokenize": tokenize_texts, "show": show_file}


def run_command(given: argparse.Namespace) -> int:
    """Run the command of this name."""
    return _COMMANDS[given.name](given)
