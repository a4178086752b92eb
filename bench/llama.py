"""`python -m bench.llama`: language models against llama.cpp (the package llama-cpp-python): same file, same threads.

For each mix a file of random weights in a real shape is written, both open it, their logits are compared, and then
they take turns: tokens made one by one (tg128) and a prompt read (pp512), each from an empty context. While tokens are
made all weights are read for each: the share of the read ceiling says how well. That is measured on the very memory
of the weights, before and after each of our turns.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .__main__ import thread_counts, unless_cut_off
from .ceilings import Place, ceiling_sampler
from .figures import digits, ratios, show_bytes, show_ratio, spread
from .machine import machine, machine_line
from .model_file import write_model
from .model_shapes import ARCHITECTURES, SHAPES
from .peers import thread_environment
from .table import as_row

__all__ = ["GOALS", "TYPES", "Line", "main", "markdown", "measured", "verdicts"]

GOALS = {  # at least so many times llama.cpp's rate, at one thread: tokens made, prompt read
    "F16": (1.0, 4.0), "Q8_0": (1.0, 1.5), "Q4_0": (1.2, 1.5), "Q6_K": (1.2, 2.0), "Q4_K_M": (1.6, 2.0),
}  # fmt: skip
TYPES = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
         "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0",
         "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # fmt: skip
_NEVER_SLOWER = (1.0, 1.0)  # what holds for every type
_OF_ARCHITECTURES = (1.3, 2.2)  # at any number of threads
_OF_ENCODERS = 1.5  # texts a second
_SHARE, _SHARE_OF_NEEDED = 0.85, 0.9  # of the read ceiling while tokens are made, at any number of threads
_TEXTS = 16  # that an encoder takes at once
_APART = 0.05  # most difference of the logits, as a share of their size: both round activations to 8 bits, each its way
_CHECKED = 6  # tokens whose logits are compared
_WARM_UP = 3  # calls: the first builds graphs, the second captures, the third replays


@dataclasses.dataclass
class Line:
    """One test of one file. Rates in tokens per second, one a round; `ceiling` is the rate at the read ceiling."""

    mix: str
    test: str
    threads: int
    size_bytes: int
    apart: float = 0.0
    kernmill: list[float] = dataclasses.field(default_factory=list)
    llama: list[float] = dataclasses.field(default_factory=list)
    ceiling: list[float] = dataclasses.field(default_factory=list)
    failed: str = ""


# --- the two sides ---------------------------------------------------------------------------------------------------
class Ours:
    """kernmill, with a cache that is just long enough."""

    def __init__(self, path: Path, length: int) -> None:
        from kernmill.formats import gguf
        from kernmill.ir import dtypes
        from kernmill.llm import Model
        from kernmill.llm.file_weights import arena_for

        file = gguf.read(path)
        arena = arena_for(file)
        self._mapping = arena.buffer(dtypes.uint8, 0).whole  # in which the weights will lie
        self.model = Model.from_gguf(file, arena=arena, tokenizer=None, capacity=length)

    def place(self) -> Place | None:
        """The memory of the weights: not all of a machine's is as fast, so this is what reading is measured on."""
        from kernmill.llm.arch.weight import nbytes

        model = self.model.architecture
        matrices = {id(m): m for layer in model.matrices for m in layer.values()}
        matrices |= {id(m): m for m in (model.embedding, model.output)}
        size = sum(nbytes(m) for m in matrices.values())
        return Place(self._mapping.address, size) if size <= self._mapping.nbytes else None

    def logits(self, ids: Sequence[int]) -> Any:
        """After these tokens, which are computed from an empty context."""
        self.model.reset()
        return self.model.next_logits(ids)

    def make(self, ids: Sequence[int]) -> None:
        """One token after the other."""
        self.model.reset()
        for end in range(1, len(ids) + 1):
            self.model.next_logits(ids[:end])

    def embed(self, texts: Sequence[Sequence[int]]) -> Any:
        """The vectors of texts, computed together, not normed."""
        return self.model.embed([[*ids] for ids in texts], normalize=False).numpy()

    def close(self) -> None:
        """Let go of it."""
        del self.model, self._mapping


class Theirs:
    """llama.cpp by its own C interface. Its context has its defaults (keys and values in float16)."""

    def __init__(self, path: Path, length: int, threads: int, *, texts: int = 0) -> None:
        self.c = llama_cpp = importlib.import_module("llama_cpp")
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp cannot open the file")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = length, max(length, 512), 512
        options.n_threads = options.n_threads_batch = threads
        if texts:
            options.n_ctx = options.n_batch = options.n_ubatch = length * texts
            options.n_seq_max, options.embeddings = texts, True
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.rows = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.width = llama_cpp.llama_model_n_embd(self.model)

    def _decode(self, ids: Sequence[int]) -> None:
        array = (self.c.llama_token * len(ids))(*ids)
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")
        self.c.llama_get_logits_ith(self.context, -1)  # waits until they are there

    def _reset(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def logits(self, ids: Sequence[int]) -> Any:
        """After these tokens, which are computed from an empty context."""
        self._reset()
        self._decode(ids)
        return np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.context, -1), (self.rows,)).copy()

    def make(self, ids: Sequence[int]) -> None:
        """One token after the other."""
        self._reset()
        for token in ids:
            self._decode([token])

    def embed(self, texts: Sequence[Sequence[int]]) -> Any:
        """The vectors of texts, computed together."""
        batch = self.c.llama_batch_init(sum(map(len, texts)), 0, 1)
        for number, ids in enumerate(texts):
            for position, token in enumerate(ids):
                n = batch.n_tokens
                batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = token, position, 1, 1
                batch.seq_id[n][0] = number
                batch.n_tokens += 1
        failed = self.c.llama_encode(self.context, batch)
        self.c.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama_encode failed")
        rows = [self.c.llama_get_embeddings_seq(self.context, n) for n in range(len(texts))]
        return np.array([np.ctypeslib.as_array(row, (self.width,)) for row in rows])

    def close(self) -> None:
        """Let go of it."""
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)


# --- measuring -------------------------------------------------------------------------------------------------------
def measured(path: Path, mix: str, test: str, threads: int, rounds: int, least_s: float = 0.0) -> Line:
    """One test: logits first, then rounds in which each takes its turn, for at most some seconds after the third."""
    from kernmill.formats import gguf
    from kernmill.runtime import wait_for_large_pages

    file, length = gguf.read(path), int(test[2:])
    size = sum(entry.stop - entry.start for entry in file.entries.values())
    (rows,) = (entry.shape[0] for name, entry in file.entries.items() if name == "token_embd.weight")
    line = Line(mix, test, threads, size)
    texts = _TEXTS if test.startswith("em") else 0
    chance = np.random.default_rng(1234)
    ids = chance.integers(3, rows, length if texts else max(length, _CHECKED)).tolist()
    several = chance.integers(3, rows, (texts, length)).tolist()
    ours, theirs = Ours(path, len(ids)), Theirs(path, len(ids), threads, texts=texts)
    try:
        line.apart = _checked(ours, theirs, ids, several)
        if not line.apart < _APART:
            line.failed = f"{'vectors' if texts else 'logits'} are {line.apart:.2g} apart"
            return line
        call = "embed" if texts else "make" if test.startswith("tg") else "logits"
        given = several if texts else ids[:length]
        for side in (ours, theirs):
            for _ in range(_WARM_UP):
                getattr(side, call)(given[:2] if call == "make" else given)
        wait_for_large_pages()  # in which its weights lie from now on
        ceiling, _ = ceiling_sampler("read", size_read(file), 0.02, threads, ours.place())
        assert ceiling is not None
        begun = time.perf_counter()
        while len(line.kernmill) < rounds and (len(line.kernmill) < 3 or time.perf_counter() - begun < least_s):
            around = []  # what reading takes before and after our turn: memory may change its speed by the second
            for side, rates in ((ours, line.kernmill), (theirs, line.llama)):
                around.append(ceiling())
                time.sleep(0.03 if threads > 1 else 0)  # the other's threads fall asleep
                rates.append((texts or length) / seconds(lambda side=side: getattr(side, call)(given)))  # type: ignore[misc]
            line.ceiling.append(2 / sum(around))
    finally:
        ours.close()
        theirs.close()
    return line


def _checked(ours: Ours, theirs: Theirs, ids: list[int], texts: list[list[int]]) -> float:
    """How far both are apart at most: the vectors of texts, or logits after one token and some."""
    if texts:
        return apart(ours.embed(texts), theirs.embed(texts))
    return max(apart(ours.logits(ids[:n]), theirs.logits(ids[:n])) for n in (1, _CHECKED))


def size_read(file: Any) -> int:
    """The bytes of a file that one token needs: not the other experts, and one row of an embedding that is not tied."""
    name, found = file.metadata["general.architecture"], 0
    used, count = (file.metadata.get(f"{name}.expert_{what}", 1) for what in ("used_count", "count"))
    for each, entry in file.entries.items():
        if each != "token_embd.weight" or "output.weight" not in file.entries:
            size = entry.stop - entry.start
            found += size * used // count if "_exps." in each else size
    return found


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def apart(ours: Any, theirs: Any) -> float:
    """How far two vectors of logits are apart, as a share of their size."""
    theirs = np.asarray(theirs, np.float64)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


# --- the table -------------------------------------------------------------------------------------------------------
def verdicts(line: Line) -> list[str]:
    """What was to be reached, and whether it was."""
    makes = line.test.startswith("tg")
    of_rows = line.mix.split()[0] in ARCHITECTURES
    if line.test.startswith("em"):
        wanted = _OF_ENCODERS
    elif of_rows:
        wanted = _OF_ARCHITECTURES[not makes]
    else:
        wanted = GOALS.get(line.mix, _NEVER_SLOWER)[not makes] if line.threads == 1 or not makes else 1.0
    found = ratios(line.kernmill, line.llama).median
    said = [f"{digits(wanted)}x: {_verdict(found, wanted)}"]
    if makes:
        share, least = ratios(line.kernmill, line.ceiling).median, _SHARE_OF_NEEDED if of_rows else _SHARE
        said.append(f"{least:.0%} of reading: {_verdict(share, least)}")
    return said


def _verdict(found: float, wanted: float) -> str:
    return "met" if found >= wanted else f"short by {100 * (1 - found / wanted):.2g}%"


def markdown(facts: dict[str, Any], shape: str, lines: Sequence[Line]) -> str:
    """The machine and the table."""
    text = [f"{machine_line(facts)}; llama-cpp-python {facts['llama']}.", "",
            f"Random weights in the shape {shape}, medians of interleaved rounds, the middle half in brackets. "
            "x: kernmill's rate by llama.cpp's; reading: the share of the read ceiling; apart: of the logits, "
            "by their size.", "",
            as_row(["type", "size", "test", "threads", "rounds", "kernmill t/s", "llama.cpp t/s", "x", "reading",
                    "llama.cpp's", "apart", "goals"]),
            as_row(["---", "--:", "---", *["--:"] * 8, "---"])]  # fmt: skip
    text += [as_row(list(cells(line))) for line in lines if not line.failed]
    failed = [f"* **{line.mix} {line.test}**, threads {line.threads}: {line.failed}" for line in lines if line.failed]
    return "\n".join([*text, *(["", "Failed, hence not timed:", "", *failed] if failed else [])]) + "\n"


def cells(line: Line) -> Iterator[str]:
    """Of one line."""
    yield from (line.mix, show_bytes(line.size_bytes), line.test, str(line.threads), str(len(line.kernmill)))
    yield from (digits(spread(rates).median) for rates in (line.kernmill, line.llama))
    yield show_ratio(ratios(line.kernmill, line.llama))
    for rates in (line.kernmill, line.llama):
        yield f"{ratios(rates, line.ceiling).median:.0%}" if line.test.startswith("tg") else ""
    yield f"{line.apart:.1%}"
    yield "; ".join(verdicts(line))


# --- the command line ------------------------------------------------------------------------------------------------
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.llama", description=__doc__)
    made.add_argument("mixes", nargs="*", metavar="MIX", help=f"of {', '.join(GOALS)}; all without any")
    made.add_argument("--types", nargs="*", metavar="TYPE", choices=TYPES, help="files of one type in place of mixes; "
                      f"all without any: {', '.join(TYPES)}")  # fmt: skip
    made.add_argument("--architectures", nargs="*", metavar="NAME", choices=ARCHITECTURES, help="a file of about 1 GB "
                      f"of each in place of mixes; all without any: {', '.join(ARCHITECTURES)}")  # fmt: skip
    made.add_argument("--shape", choices=SHAPES, help="default 0.5B, with --types layers")
    made.add_argument("--tests", default="", help="such as tg128,pp512 (default; with --quick tg16,pp64); of an "
                      "encoder em128")  # fmt: skip
    made.add_argument("--threads", default="1", help="numbers of threads, a process each: 1,2 (default 1)")
    made.add_argument("--seconds", type=float, default=60, help="a test, after its third round (default %(default)s)")
    made.add_argument("--quick", action="store_true", help="short tests and few rounds: a look")
    made.add_argument("--folder", type=Path, help="keep the model files here, and take those that are there")
    made.add_argument("--json", type=Path, metavar="FILE", help="keep every sample, as in bench/results")
    made.add_argument("--show", nargs="+", type=Path, metavar="FILE", help="nothing is run: the table of what was kept")
    return made


def run_here(arguments: argparse.Namespace, threads: int, folder: Path) -> Iterator[Line]:
    """Every test in this process."""
    for mix in arguments.mixes or GOALS:
        row = ARCHITECTURES.get(name := mix.split()[0])
        path = folder / f"random-{'' if row else arguments.shape + '-'}{mix.replace(' ', '-')}.gguf"
        if not path.exists():
            write_model(path, name if row else arguments.shape, row.mix if row else mix)
        usual = "em128" if row and row.is_encoder else "tg16,pp64" if arguments.quick else "tg128,pp512"
        for test in chosen_tests(mix, arguments.tests or usual):
            line = measured(path, mix, test, threads, 3 if arguments.quick else 11, arguments.seconds)
            print(as_row(list(cells(line))) if not line.failed else line.failed, file=sys.stderr, flush=True)
            yield line
        if not arguments.folder:
            path.unlink()


def chosen_tests(mix: str, tests: str) -> list[str]:
    """Return those of the tests that a file can take: an encoder embeds texts, others read and make tokens.

    Raises:
        ValueError: there are none, or one has another name.
    """
    row, given = ARCHITECTURES.get(mix.split()[0]), tests.split(",")
    if wrong := [test for test in given if not (test[:2] in ("tg", "pp", "em") and test[2:].isdecimal())]:
        raise ValueError(
            f"--tests {wrong[0]}: must be tg, pp or em with a number of tokens, such as tg128,pp512 or em128"
        )
    is_encoder = row is not None and row.is_encoder
    fitting = [test for test in given if test.startswith("em") == is_encoder]
    if not fitting:
        what = "an encoder: it takes em" if is_encoder else "no encoder: it takes tg and pp"
        raise ValueError(f"--tests {tests}: {mix} is {what}. Add such a test, or leave --tests out")
    return fitting


def run_all(arguments: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[Line]]:
    """A process for each number of threads, which is in its environment before anything is imported."""
    facts: dict[str, Any] = {}
    lines: list[Line] = []
    for threads in thread_counts(arguments.threads):
        kept = folder / f"lines-{threads}.json"
        tests = ["--tests", arguments.tests] if arguments.tests else []
        shape = ["--shape", arguments.shape] if arguments.shape in SHAPES else []
        command = [sys.executable, "-m", "bench.llama", *arguments.mixes, *shape, *tests]
        command += ["--threads", str(threads), "--folder", str(arguments.folder or folder), "--json", str(kept)]
        command += ["--seconds", str(arguments.seconds), *(["--quick"] if arguments.quick else []), "--child"]
        done = subprocess.run(command, env=thread_environment(threads), check=False)  # 1 where a test failed
        if not kept.exists():
            raise RuntimeError(f"the run with {threads} threads ended with {done.returncode}, without figures")
        facts, found = shown([kept])
        lines += found
    return facts, lines


def shape_of(mixes: Sequence[str]) -> str:
    """The shape of the files where none is given: the layers of a larger model where each file has one type."""
    if mixes and all(mix.split()[0] in ARCHITECTURES for mix in mixes):
        return "of each architecture"
    return "layers" if mixes and all(mix.startswith("all ") for mix in mixes) else "0.5B"


def shown(files: Sequence[Path]) -> tuple[dict[str, Any], list[Line]]:
    """What --json kept."""
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return contents[-1]["machine"], [Line(**line) for content in contents for line in content["lines"]]


def main(given: Sequence[str] | None = None) -> int:
    """1 when a test failed, 2 when the peer is not installed, else 0."""
    made = parser()
    made.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = made.parse_args(given)
    if arguments.types is not None:
        if arguments.mixes:
            made.error(f"{arguments.mixes[0]} and --types: give mixes or types, not both")
        arguments.mixes = [f"all {kind}" for kind in arguments.types or TYPES]
    if arguments.architectures is not None:
        if arguments.mixes:
            made.error(f"{arguments.mixes[0]} and --architectures: give mixes, types or architectures")
        arguments.mixes = [f"{name} {ARCHITECTURES[name].mix}" for name in arguments.architectures or ARCHITECTURES]
    kept = shown(arguments.show) if arguments.show else None
    mixes = [line.mix for line in kept[1]] if kept else arguments.mixes
    arguments.shape = arguments.shape or shape_of(mixes)
    if unknown := {*arguments.mixes} - {
        *GOALS, *(f"all {kind}" for kind in TYPES), *(f"{name} {row.mix}" for name, row in ARCHITECTURES.items())
    }:  # fmt: skip
        made.error(f"{min(unknown)}: must be one of {', '.join(GOALS)}")
    try:
        _ = [chosen_tests(mix, arguments.tests) for mix in arguments.mixes or GOALS if arguments.tests]
    except ValueError as error:
        made.error(f"{error}.")
    try:
        llama_cpp = importlib.import_module("llama_cpp")
    except ImportError:
        print("bench.llama: llama-cpp-python is not installed. Run: pip install llama-cpp-python", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kernmill-llama-") as name:
        folder = arguments.folder or Path(name)
        if kept:
            facts, lines = kept
        elif arguments.child:
            facts = {**machine(), "llama": llama_cpp.__version__}
            lines = list(run_here(arguments, int(arguments.threads), folder))
        else:
            facts, lines = run_all(arguments, Path(name))
    if arguments.json:
        content = {"machine": facts, "lines": [dataclasses.asdict(line) for line in lines]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if not arguments.child:
        text = markdown(facts, arguments.shape, lines)
        print(text, end="")
    return int(any(line.failed for line in lines))


if __name__ == "__main__":
    sys.exit(unless_cut_off(main))
