"""Models over several devices: the CPU time of placing a deep one's token, and what its splits cost without the copies.

    python -m bench.placed_models            # both
    python -m bench.placed_models splits --tokens 60
    THREADS=1 python -m bench.placed_models splits --clock cpu    # where other programs run

The model has 24 layers of random weights. *place*: its decode graph over LLVM and two far devices, placed cold; the aim
is 50 ms of CPU time. *splits*: four far devices of which each has room for a third of the weights, against one that
has room for all; the tokens must be equal. Overhead is the longer time of a token without the copies, each measured
alone; the aim is 5 %. The devices are processes (tests/far_device.py): measure on a machine that does nothing else, or
the CPU time of all of them.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from kernmill import Context
from kernmill.compiler import find_units
from kernmill.ir import dtypes, no_collection
from kernmill.llm import Model, Sampler
from kernmill.llm.split import SplitOptions
from kernmill.runtime import Buffer, allocate_buffer, close_device, copy_between, device, device_rates, get_device

from . import model_file
from .model_shapes import SHAPES
from .placed_graphs import cpu_clock

__all__ = ["Placing", "Splits", "main", "placing", "splits"]

_LAYERS, _WIDTH = 24, 256
_PROMPT = [1, 2, 3, 4]
_ROUNDS = 5


class Placing(NamedTuple):
    """CPU milliseconds of placing one graph: the first time, and the median of later ones."""

    units: int
    first_ms: float
    median_ms: float


class Splits(NamedTuple):
    """Milliseconds of a token: on one device, over several, and of the copies between them, alone."""

    one_ms: float
    several_ms: float
    copies_ms: float
    is_same: bool

    @property
    def overhead(self) -> float:
        """What the splits cost without the copies, as a part of a token's time on one device."""
        return (self.several_ms - self.copies_ms) / self.one_ms - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="?", choices=("place", "splits"))
    parser.add_argument("--tokens", type=int, default=30, help="of each round")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of splits")
    given = parser.parse_args(arguments)
    if given.what != "splits":
        one = placing()
        print(f"place: {one.units} units, cold {one.first_ms:.1f} ms of CPU, again {one.median_ms:.1f} ms")
    if given.what != "place":
        with cpu_clock() if given.clock == "cpu" else nullcontext():
            found = splits(given.tokens)
        print(f"splits: a token takes {found.one_ms:.2f} ms on one device, {found.several_ms:.2f} ms over four")
        same = "the same tokens" if found.is_same else "OTHER TOKENS"
        print(f"        copies alone {found.copies_ms:.2f} ms, overhead {100 * found.overhead:+.1f} %, {same}")


def placing(layers: int = _LAYERS) -> Placing:
    """Place the decode graph of a model on LLVM and two far devices."""
    stage = importlib.import_module("kernmill.compiler.graph.pipeline")  # whose function is watched
    place, seen = stage.place, list[tuple[float, Any]]()

    def timed(*given: Any) -> Any:
        start = time.process_time()
        placed = place(*given)
        seen.append((time.process_time() - start, given))
        return placed

    with far_devices([64, 64]) as names, model_of(layers) as path, Context(CACHE_DIR=str(path.parent)):  # no plans yet
        stage.place = timed  # type: ignore[attr-defined]
        try:
            model = Model.from_gguf(
                path,
                device=",".join(["LLVM", *names]),
                wanted=SplitOptions(layers + 1, (1.0,) * len(names)),
                capacity=64,
            )
            list(model.generate(_PROMPT, Sampler(temperature=0), max_tokens=2))
        finally:
            stage.place = place  # type: ignore[attr-defined]
    first, given = max((one for one in seen if one[1][2] is not None), key=lambda one: len(one[1][0]))
    seen.clear()
    with no_collection():
        for _ in range(_ROUNDS):
            timed(*given)
    units = len(find_units(given[0], given[1], given[2].pins)[0])
    return Placing(units, first * 1e3, statistics.median(time for time, _ in seen) * 1e3)


def splits(tokens: int = 30, layers: int = _LAYERS) -> Splits:
    """Compare one far device with four, in turns."""
    with model_of(layers) as path:
        third = -(-path.stat().st_size // 3) + (1 << 20) >> 20
        with far_devices([third] * 4) as parts, far_devices([256], "WHOLE") as (whole,):
            models = [model_over(path, [whole], layers), model_over(path, parts, layers)]
            texts, times = [list[int](), list[int]()], [list[float](), list[float]()]
            for _ in range(_ROUNDS):
                for model, text, taken in zip(models, texts, times, strict=True):
                    text[:] = _generate(model, tokens, taken)
            copies = sum(_copy_ms(a, b) for a, b in itertools.pairwise(parts))
    one, several = (statistics.median(taken) for taken in times)
    return Splits(one, several, copies, texts[0] == texts[1])


def _generate(model: Model, tokens: int, taken: list[float]) -> list[int]:
    """A text of two tokens and `tokens` more; the milliseconds of each are added to `taken`."""
    model.reset()
    steps = model.generate(_PROMPT, Sampler(temperature=0), max_tokens=tokens + 2)
    text = [next(steps), next(steps)]  # the prompt, and a first token
    for _ in range(tokens):
        start = device_rates.timer()
        text.append(next(steps))
        taken.append((device_rates.timer() - start) / 1e6)
    return text


def model_over(path: Path, names: Sequence[str], layers: int) -> Model:
    """A model with all its layers on these devices in equal parts."""
    wanted = SplitOptions(layers + 1, (1.0,) * len(names))
    return Model.from_gguf(path, device=",".join([*names, "LLVM"]), wanted=wanted, capacity=64)


def _copy_ms(source: str, target: str) -> float:
    """Milliseconds of a copy of one token's residual, alone."""
    buffers: list[Buffer] = [allocate_buffer(name, dtypes.float32, _WIDTH) for name in (target, source)]
    times: list[float] = []
    for _ in range(40):
        start = device_rates.timer()
        copy_between(*buffers)
        times.append((device_rates.timer() - start) / 1e6)
    return statistics.median(times)


@contextmanager
def model_of(layers: int) -> Iterator[Path]:
    """A file with a model of random weights."""
    sizes = SHAPES["tiny"]
    SHAPES["deep"] = {**sizes, "llama.block_count": layers, "llama.embedding_length": _WIDTH}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deep.gguf"
        model_file.write_model(path, "deep", "F32")
        yield path


@contextmanager
def far_devices(mib: Sequence[int], kind: str = "FAR") -> Iterator[list[str]]:
    """Far devices with so much memory each, by name; they are closed afterwards."""
    before = device.device_names
    device.device_names = lambda: {**before(), kind: "tests.far_device:FarDevice"}
    names = [get_device(f"{kind}:{n}?mib={size}").name for n, size in enumerate(mib)]
    try:
        yield names
    finally:
        for name in names:
            close_device(name)
            device._options.pop(name, None)
        device.device_names = before


if __name__ == "__main__":
    main()
