"""`python -m bench.torch_compile`: eleven models in PyTorch, eager, by inductor and by kernmill, in eval and training.

A training step sets the gradients to none, computes a loss, and calls backward() and the step of SGD. Each peer has its
own process and empty caches; all three take samples in turn. `first` is the first call, with what it imports and
compiles. The losses of the first calls must agree.

    python -m bench.torch_compile
    python -m bench.torch_compile --families 'lstm,recommender' --modes training --clock cpu
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from .figures import digits, ratios_to, show_ratio, show_seconds, spread
from .fresh_rows import cache_environment
from .machine import machine, machine_line
from .peers import thread_environment
from .timing import call_sampler, interleave

__all__ = ["main"]

NAMES = ("mlp", "cnn", "resnet", "transformer encoder", "gpt", "lstm", "u-net", "vit", "mobilenet", "recommender",
         "diffusion u-net")  # fmt: skip
PEERS, MODES = ("eager", "inductor", "kernmill"), ("eval", "training")
_BATCH, _FIRST_CALLS, _SAMPLE_S, _TOLERANCE = 4, 4, 0.05, 1e-3


# --- a process of one peer -------------------------------------------------------------------------------------------
def call_of(name: str, mode: str, peer: str) -> Callable[[], Any]:
    """A call of the model, or a training step, which returns one number."""
    torch = importlib.import_module("torch")  # after the start of the clock
    families = importlib.import_module("bench.torch_families")
    torch.set_num_threads(int(os.environ["THREADS"]))
    torch.manual_seed(0)
    make, batch = families.REAL[name]
    model, given = make(), batch(_BATCH)
    model.train(mode == "training")
    fast = model if peer == "eager" else torch.compile(model, backend=peer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def train() -> Any:
        optimizer.zero_grad()
        loss = fast(*given).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def evaluate() -> Any:
        with torch.no_grad():
            return fast(*given)

    return train if mode == "training" else evaluate


def work(name: str, mode: str, peer: str, clock: str) -> None:
    """Print the first seconds and results, then the seconds of a call for each line that is read."""
    start = time.perf_counter()
    call = call_of(name, mode, peer)
    results = [float(call().square().mean())]
    first = time.perf_counter() - start
    results += [float(call().square().mean()) for _ in range(_FIRST_CALLS - 1)]
    print(json.dumps({"first": first, "results": results}), flush=True)
    sampler = call_sampler(call, _SAMPLE_S, int(os.environ["THREADS"]), clock=CLOCKS[clock])
    for _ in sys.stdin:
        print(sampler(), flush=True)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Worker:
    """The process; a sampler."""

    def __init__(self, name: str, mode: str, peer: str, options: argparse.Namespace, cache: str) -> None:
        environment = thread_environment(options.threads) | cache_environment(cache)
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(options.threads)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.torch_compile", "--work", json.dumps([name, mode, peer, options.clock])],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.facts: dict[str, Any] = json.loads(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError("the process ended")

    def __call__(self) -> float:
        """A sample: seconds of one call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())


# --- rows ------------------------------------------------------------------------------------------------------------
def measured(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: seconds of each peer's calls and first call, or an error."""
    cache, workers = tempfile.mkdtemp(), dict[str, Worker]()
    try:
        for peer in PEERS:
            workers[peer] = Worker(name, mode, peer, options, f"{cache}/{peer}")
        want, ours = (workers[peer].facts["results"] for peer in ("eager", "kernmill"))
        if not all(math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-6) for a, b in zip(want, ours, strict=True)):
            return {"name": name, "mode": mode, "error": f"results {ours}, of eager PyTorch {want}"}
        samples = interleave(workers, options.rounds)
        first = {peer: worker.facts["first"] for peer, worker in workers.items()}
        return {"name": name, "mode": mode, "samples": samples, "first": first}
    except (RuntimeError, ValueError) as error:
        return {"name": name, "mode": mode, "error": str(error)}
    finally:
        for worker in workers.values():
            worker.process.communicate()
        shutil.rmtree(cache, ignore_errors=True)


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"| {row['name']} | {row['mode']} | {row['error']} | | | | |"
    ours, first = row["samples"]["kernmill"], row["first"]
    ratios = [show_ratio(ratios_to(row["samples"][peer], ours)) for peer in PEERS[:2]]
    return (
        f"| {row['name']} | {row['mode']} | {show_seconds(spread(ours).median)} | {' | '.join(ratios)} | "
        f"{show_seconds(first['kernmill'])} | {digits(first['inductor'] / first['kernmill'])} |"
    )


def means(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The geometric means over the models of each mode."""
    lines = []
    for mode in MODES:
        good = [row for row in rows if row["mode"] == mode and "samples" in row]
        if good:
            parts = [
                f"{_mean([ratios_to(row['samples'][p], row['samples']['kernmill']).median for row in good])} of {p}"
                for p in PEERS[:2]
            ]
            cold = _mean([row["first"]["inductor"] / row["first"]["kernmill"] for row in good])
            lines.append(f"{mode}: {' and '.join(parts)}, the first call {cold} of inductor, in the geometric mean")
    return lines


def _mean(values: Sequence[float]) -> str:
    return digits(math.exp(sum(map(math.log, values)) / len(values)))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--families", default="*", help="names, with * and ?, separated by commas")
    given.add_argument("--modes", default=",".join(MODES))
    given.add_argument("--rounds", type=int, default=9)
    given.add_argument("--threads", type=int, default=1)
    given.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the processor time of a process")
    given.add_argument("--json", help="a file for every sample")
    given.add_argument("--work", help=argparse.SUPPRESS)
    options = given.parse_args(arguments)
    if options.work:
        work(*json.loads(options.work))
        return 0
    facts, rows = machine(), list[dict[str, Any]]()
    print(f"{machine_line(facts)}\n\n| model | mode | kernmill | x eager | x inductor | first | x inductor's first |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for mode in options.modes.split(","):
        for name in NAMES:
            if any(fnmatch.fnmatch(name, pattern) for pattern in options.families.split(",")):
                rows.append(measured(name, mode, options))
                print(shown(rows[-1]), flush=True)
    print("\n" + "\n".join(means(rows)))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": facts, "threads": options.threads, "clock": options.clock, "rows": rows}, file)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
