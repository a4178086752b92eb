"""`kernmill bench MODEL -p 512 -n 128 -d 256`: tokens per second of a model, in the columns of llama-bench."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from kernmill import Context
from kernmill.ir import SettingError
from kernmill.runtime import get_device, host, wait_for_large_pages

from ..formats import gguf
from ..quant.mixes import MIXES
from . import folders
from .arch.cache import CACHE_TYPES, CacheTypes, pair_of
from .generate import Model
from .memory_needs import needing_memory
from .sources import check_without_source

__all__ = ["OUTPUTS", "Lengths", "Test", "Wanted", "measure", "run"]

SEED = 1234
WARM_UP = 3  # calls before the first sample: the first builds graphs and captures, the others replay


class Lengths(NamedTuple):
    """A prompt, then tokens one by one, behind `depth` tokens that are in the cache already."""

    prompt: int
    gen: int
    depth: int = 0

    @property
    def label(self) -> str:
        """llama-bench's name of it, such as "tg128 @ d256"."""
        parts = f"{f'pp{self.prompt}' if self.prompt else ''}{f'+tg{self.gen}' if self.gen else ''}".removeprefix("+")
        return f"{parts} @ d{self.depth}" if self.depth else parts


@dataclass(frozen=True, slots=True)
class Test:
    """One row: a prompt of `n_prompt` tokens, then `n_gen` tokens one by one, behind `n_depth` tokens. The names are
    llama-bench's."""

    model_filename: str
    model_type: str
    model_size: int  # bytes of all tensors
    model_n_params: int
    backends: str
    cpu_info: str
    n_threads: int  # 0: the device runs a kernel on no threads of the host
    n_batch: int
    type_k: str
    type_v: str
    n_prompt: int
    n_gen: int
    n_depth: int
    test_time: str
    avg_ns: int
    stddev_ns: int
    avg_ts: float
    stddev_ts: float
    samples_ns: list[int]
    samples_ts: list[float]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The measurements: each prompt length, each number of generated tokens, and each pair of both, behind each depth,
    with each number of threads. A length of 0 is left out."""

    prompts: Sequence[int]
    counts: Sequence[int]
    threads: Sequence[int]
    repeats: int = 5
    block: int | None = None
    cache_type: CacheTypes = CACHE_TYPES[0]
    depths: Sequence[int] = (0,)
    pairs: Sequence[tuple[int, int]] = ()

    def lengths(self) -> list[Lengths]:
        """Return the lengths of each row."""
        alone = [(n, 0) for n in self.prompts] + [(0, n) for n in self.counts]
        return [Lengths(*one, depth) for depth in self.depths for one in (*alone, *self.pairs) if any(one)]


def run(path: str | os.PathLike[str], wanted: Wanted, output: str = "md") -> None:
    """Print a row for each.

    Raises:
        FormatError: the file cannot be read, or does not hold a model that kernmill can run.
        SettingError: there is nothing to measure.
    """
    lengths = wanted.lengths()
    if not lengths:
        raise SettingError("bench: -p 0 -n 0 leaves nothing to measure. Give one of them a number of tokens.")
    with needing_memory(path, max(map(sum, lengths)), wanted.cache_type):
        file = folders.read_any(path)
        tests = (measure(file, each, wanted, threads=count) for count in wanted.threads for each in lengths)
        for line in OUTPUTS[output](tests):
            print(line, flush=True)


def measure(file: gguf.GGUFFile, lengths: Lengths, wanted: Wanted, *, threads: int) -> Test:
    """Measure one row, on a separate model whose cache is just long enough."""
    with Context(THREADS=threads):
        return _measured(file, lengths, wanted)


def _measured(file: gguf.GGUFFile, lengths: Lengths, wanted: Wanted) -> Test:
    model = Model.from_gguf(
        file, tokenizer=None, capacity=sum(lengths), block=wanted.block, cache_type=wanted.cache_type
    )
    check_without_source(model.architecture, "bench")
    ids = np.random.default_rng(SEED).integers(0, model.architecture.vocabulary, sum(lengths)).tolist()
    for _ in range(WARM_UP):
        _once(model, ids, lengths._replace(gen=min(lengths.gen, 2)))
    wait_for_large_pages()
    samples = [_once(model, ids, lengths) for _ in range(wanted.repeats)]
    length = lengths.prompt + lengths.gen
    rates = [length / ns * 1e9 for ns in samples]
    cpu, device = host.this_host(), get_device()
    type_k, type_v = pair_of(wanted.cache_type)
    return Test(
        model_filename=file.where,
        model_type=_type_of(file),
        model_size=sum(entry.stop - entry.start for entry in file.entries.values()),
        model_n_params=sum(int(np.prod(entry.shape, dtype=np.int64)) for entry in file.entries.values()),
        backends=device.name,
        cpu_info=cpu.cpu,
        n_threads=cpu.threads() if device.target.has_threads else 0,
        n_batch=model.large_block,
        type_k=type_k,
        type_v=type_v,
        n_prompt=lengths.prompt,
        n_gen=lengths.gen,
        n_depth=lengths.depth,
        test_time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        avg_ns=round(statistics.fmean(samples)),
        stddev_ns=round(_spread(samples)),
        avg_ts=statistics.fmean(rates),
        stddev_ts=_spread(rates),
        samples_ns=samples,
        samples_ts=rates,
    )


def _once(model: Model, ids: list[int], lengths: Lengths) -> int:
    """Behind the first `depth` tokens. Units: ns."""
    model.reset()
    begin = lengths.depth + lengths.prompt
    if lengths.depth:
        model.next_logits(ids[: lengths.depth])
    start = time.perf_counter_ns()
    if lengths.prompt:
        model.next_logits(ids[:begin])
    for end in range(begin + 1, begin + lengths.gen + 1):
        model.next_logits(ids[:end])
    return time.perf_counter_ns() - start


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _type_of(file: gguf.GGUFFile) -> str:
    """Return a name such as "llama 1B Q4_0"."""
    of_number = {mix.file_type: mix.name for mix in MIXES.values()}
    kinds = Counter(entry.type.name for entry in file.entries.values() if len(entry.shape) > 1)
    number = file.metadata.read("general.file_type", int, -1)
    kind = of_number.get(number) or (kinds.most_common(1)[0][0] if kinds else "F32")
    name = file.metadata.read("general.architecture", str, "?")
    return " ".join(filter(None, (name, file.metadata.read("general.size_label", str, ""), kind)))


# --- how it is written -----------------------------------------------------------------------------------------------
_COLUMNS = ("model", "size", "params", "backend", "threads", "test", "t/s")
_WIDTHS = (30, 10, 10, 10, 7, 15, 20)
_LEFT = 1  # left-aligned columns; the others are right-aligned
_DASHES = "".join(f"| {'-' * w} " if n < _LEFT else f"| {'-' * (w - 1)}: " for n, w in enumerate(_WIDTHS)) + "|"


def _markdown(tests: Iterator[Test]) -> Iterator[str]:
    for number, test in enumerate(tests):
        if not number:  # not before the file has proved to be a model
            yield _row(_COLUMNS)
            yield _DASHES
        name = Lengths(test.n_prompt, test.n_gen, test.n_depth).label
        rate = f"{test.avg_ts:.2f} ± {test.stddev_ts:.2f}"
        yield _row((test.model_type, _size(test.model_size), _shown_count(test.model_n_params), test.backends,
                    str(test.n_threads or "-"), name, rate))  # fmt: skip


def _row(cells: Sequence[str]) -> str:
    parts = zip(range(len(cells)), cells, _WIDTHS, strict=True)
    return "| " + " | ".join(cell.ljust(width) if n < _LEFT else cell.rjust(width) for n, cell, width in parts) + " |"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.2f} MiB"


def _shown_count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _csv(tests: Iterator[Test]) -> Iterator[str]:
    """One number a field: without the samples, as llama-bench has it."""
    for number, test in enumerate(tests):
        fields = {name: value for name, value in asdict(test).items() if not isinstance(value, list)}
        if not number:
            yield ",".join(fields)
        yield ",".join('"' + str(value).replace('"', '""') + '"' for value in fields.values())


def _json(tests: Iterator[Test]) -> Iterator[str]:
    yield json.dumps([asdict(test) for test in tests], indent=2)


def _json_lines(tests: Iterator[Test]) -> Iterator[str]:
    yield from (json.dumps(asdict(test)) for test in tests)


OUTPUTS = {"md": _markdown, "csv": _csv, "json": _json, "jsonl": _json_lines}
