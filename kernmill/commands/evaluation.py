"""`kernmill perplexity`: how well a model predicts a text, and how near its predictions are to those of another.

`kernmill imatrix`: the importance of the columns of its matrices on a text.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import Context, FormatError, SettingError, setting

from ..llm import folders
from ..llm.generate import Model
from ..llm.imatrix import Collector, importance_of
from ..llm.memory_needs import needing_memory
from ..llm.model_file import config_in, naming
from ..llm.perplexity import CONTEXT, Base, Predictions, chunks_of, predictions
from ..quant.importance import Importance, read, save
from . import options

__all__ = ["show_perplexity", "write_imatrix"]

_QUANTILES = (0.5, 0.9, 0.99, 0.999)


def show_perplexity(given: argparse.Namespace) -> int:
    """Print the perplexity of a text, and with a base how the predictions differ."""
    options.check_path("perplexity", given.model, "Give a GGUF file.")
    base = _base_of(given)
    text = "" if base is not None else _whole_text(given)
    size = base.chunks.shape[1] if base is not None else _context(given)
    with (
        Context(THREADS=given.threads or setting("THREADS")),
        needing_memory(given.model, size),
        Model.from_gguf(given.model, capacity=size) as model,
    ):
        chunks = chunks_of(model, text, size, given.chunks) if base is None else base.chunks[: given.chunks]
        target = None if given.kl_divergence else given.kl_divergence_base
        found = predictions(model, chunks, base=base, target=target)
    print(f"{len(chunks)} chunks of {size} tokens, of which {len(found.loss)} were predicted")
    print("\n".join(lines_of(found)))
    return 0


def write_imatrix(given: argparse.Namespace) -> int:
    """Compute an importance matrix, and write it."""
    for path in (given.model, given.output, *(given.in_file or ())):
        options.check_path("imatrix", path, "Give: kernmill imatrix MODEL -f TEXT -o FILE.")
    if os.path.exists(given.output) and os.path.samefile(given.output, given.model):
        raise FormatError(f"{given.output}: is the model. Write to a different path with -o.")
    found = _summed([read(path) for path in given.in_file or ()])
    if given.file is not None or not found.columns:
        found = _summed([found, _of_text(given)])
    save(given.output, found)
    empty = sum(int((columns.counts == 0).sum()) for columns in found.columns.values())
    print(f"{given.output}: {len(found.columns)} matrices, {found.chunks} chunks of {found.size} tokens")
    if empty:
        print(f"{empty} experts saw no token: their columns count alike. A longer text reaches more of them.")
    return 0


def _of_text(given: argparse.Namespace) -> Importance:
    """The importance of columns on the text of -f."""
    text, size, watcher = _whole_text(given), _context(given), Collector(with_output=given.process_output)
    with (
        Context(THREADS=given.threads or setting("THREADS")),
        needing_memory(given.model, size),
        Model.from_gguf(given.model, capacity=size, watcher=watcher) as model,
    ):
        chunks = chunks_of(model, text, size, given.chunks, "imatrix")
        return importance_of(model, watcher, chunks, given.file)


def _summed(parts: Sequence[Importance]) -> Importance:
    """The sums of several texts."""
    whole = Importance({})
    for part in parts:
        whole.add(part)
    return whole


def _base_of(given: argparse.Namespace) -> Base | None:
    """The file of --kl-divergence."""
    path, asked = given.kl_divergence_base, given.kl_divergence
    options.check_path("perplexity", path, "Give the path of a base with --kl-divergence-base.")
    if not asked:
        return None
    if path is None:
        raise SettingError("perplexity: --kl-divergence compares with a base. Give its --kl-divergence-base FILE.")
    base = Base(path)
    if given.file is not None:
        raise SettingError(f"perplexity: the text is that of the base in {path}. Leave out -f {given.file}.")
    if given.ctx_size not in (None, base.chunks.shape[1]):
        raise SettingError(
            f"perplexity: the base in {path} has chunks of {base.chunks.shape[1]} tokens. Leave out -c "
            f"{given.ctx_size}, or write it again."
        )
    return base


def _context(given: argparse.Namespace) -> int:
    """The tokens of a chunk."""
    if given.ctx_size is not None:
        return int(given.ctx_size)
    file = folders.read_any(given.model)
    with naming(file):
        return min(CONTEXT, config_in(file).context)


def _whole_text(given: argparse.Namespace) -> str:
    """The text of -f, without the newline at its end."""
    name, where = given.name, given.file
    options.check_path(name, where, "Give the path of a text with -f.")
    if where is None:
        raise SettingError(f"{name}: no text. Give a file with -f; - is stdin.")
    try:
        raw = sys.stdin.buffer.read() if where == "-" else _bytes_of(where)
        return raw.removesuffix(b"\n").decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a zero byte
        why = "it is not in UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", 0) or error
        raise FormatError(f"{where}: cannot be read: {why}. Give the path of a text.") from None


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- the table -------------------------------------------------------------------------------------------------------
def lines_of(found: Predictions) -> list[str]:
    """Return a line for each figure, with its standard error."""
    loss = _mean_and_error(found.loss)
    lines = [_figure("perplexity", found.perplexity(), found.perplexity() * loss[1])]
    if found.base_loss is None:
        return lines
    assert found.divergence is not None
    assert found.change is not None
    assert found.same_top is not None
    base = _mean_and_error(found.base_loss)
    share = float(found.same_top.mean())
    square, its_error = _mean_and_error(np.square(found.change))
    lines += [
        _figure("perplexity of the base", math.exp(base[0]), math.exp(base[0]) * base[1]),
        _figure("ln(perplexity / base)", *_mean_and_error(found.loss - found.base_loss)),
        _figure("KL divergence, mean", *_mean_and_error(found.divergence)),
        *(
            f"{f'KL divergence, {100 * part:g} %':24} {np.quantile(found.divergence, part):12.6f}"
            for part in _QUANTILES
        ),
        f"{'KL divergence, largest':24} {found.divergence.max():12.6f}",
        _figure("change of p, RMS, %", 100 * math.sqrt(square), 50 * its_error / math.sqrt(square) if square else 0.0),
        _figure("same top token, %", 100 * share, 100 * math.sqrt(share * (1 - share) / max(1, len(found.loss) - 1))),
    ]
    return lines


def _mean_and_error(values: Any) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _figure(name: str, value: float, error: float) -> str:
    return f"{name:24} {value:12.6f} +- {error:.6f}"
