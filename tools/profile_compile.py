"""Where kernmill's own time goes: a matrix product, a transformer block forward and with gradients, cold and warm.

    python tools/profile_compile.py                    # all cases; what they show: docs/topics/compile-time.md
    python tools/profile_compile.py --layers           # 1, 12 and 24 equal layers
    python tools/profile_compile.py block_gradients --functions 25

Every case is a process of its own on one thread, with an empty cache (cold) or a filled one (warm). Times are CPU time
of the process: on a shared machine they say more than the clock. A phase's time does not hold that of the phases
inside it. The compiling process is off for that (COMPILER_PROCESS=0); what it saves has a line of its own. Starting
Python and importing is left out, and so is running the kernels where nothing else is said.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CASES = ("matmul", "block_forward", "block_gradients", "blocks_forward", "blocks_gradients", "recurrent_forward")
ABOUT = {
    "matmul": "a product, 512 x 512",
    "block_forward": "a transformer block of width 1024, 256 tokens, forward",
    "block_gradients": "the same with gradients",
    "blocks_forward": "four such blocks, forward",
    "blocks_gradients": "four such blocks with gradients",
    "recurrent_forward": "an LSTM of width 64 over 128 places, forward",
}
LAYERS = tuple(f"layers{count}_{what}" for what in ("forward", "gradients") for count in (1, 12, 24))
SIZES = {  # how many blocks, their width, tokens, heads
    "block": (1, 1024, 256, 16), "blocks": (4, 1024, 256, 16),
    **{f"layers{count}": (count, 256, 32, 4) for count in (1, 12, 24)},
}  # fmt: skip


# --- phases ----------------------------------------------------------------------------------------------------------
class Phases:
    """CPU seconds by phase; the time of an inner phase is taken off the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.wall_s: dict[str, float] = {}
        self.wall_since = time.perf_counter()
        self.stack: list[str] = ["front"]
        self.since = time.process_time()

    def switch(self) -> None:
        """Book the time since the last switch on the phase that ran."""
        now, wall = time.process_time(), time.perf_counter()
        name = self.stack[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.wall_s[name] = self.wall_s.get(name, 0.0) + wall - self.wall_since
        self.since, self.wall_since = now, wall

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a phase."""

        def run(*args: Any, **keywords: Any) -> Any:
            self.switch()
            self.stack.append(name)
            try:
                return function(*args, **keywords)
            finally:
                self.switch()
                self.stack.pop()

        return run

    def wrap(self, module: str, names: dict[str, str]) -> None:
        """Functions of a module, under the names by which it calls them, as phases."""
        importlib.import_module(module)
        for function, phase in names.items():
            setattr(sys.modules[module], function, self.timed(phase, getattr(sys.modules[module], function)))


def watch(phases: Phases) -> None:
    """Put the phases into the compiler."""
    phases.wrap("kernmill.runtime.execute", {
        "GraphWalk": "walk the graph", "find_plan": "find the plan", "run_batch": "run",
    })  # fmt: skip
    phases.wrap("kernmill.runtime.plans.plan", {
        "closed": "close the graph", "build_all": "look up", "_read": "read plan", "_written": "write plan",
    })  # fmt: skip
    phases.wrap("kernmill.runtime.plans.planning", {"plan_graph": "plan the graph"})
    phases.wrap("kernmill.runtime.programs.compiling", {
        "lower": "lower", "estimate": "estimate", "signature": "render",
    })  # fmt: skip
    for module, name in (("pipeline", "PIPELINE"), ("graph.pipeline", "GRAPH_PIPELINE")):
        pipeline: Any = sys.modules[f"kernmill.compiler.{module}"]
        steps = [replace(step, run=phases.timed(f"pass {step.name}", step.run)) for step in getattr(pipeline, name)]
        setattr(pipeline, name, tuple(steps))
    device = importlib.import_module("kernmill.runtime").get_device("LLVM")
    device.renderer.render = phases.timed("render", device.renderer.render)
    phases.wrap("kernmill.runtime.cpu.llvm_codegen", {"compile_ir": "LLVM"})  # of compile_later
    device.compile = phases.timed("LLVM", device.compile)
    device.compile_later = phases.timed("LLVM", device.compile_later)
    device.load = phases.timed("load", device.load)
    cache: Any = sys.modules["kernmill.runtime.programs.compile_cache"].CompileCache
    cache.get, cache.put = phases.timed("disk", cache.get), phases.timed("disk", cache.put)


# --- cases -----------------------------------------------------------------------------------------------------------
def work(case: str) -> Callable[[], object]:
    """What is measured; weights and data are made before."""
    import numpy as np

    from kernmill import Tensor, nn

    def values(*shape: int) -> Tensor:
        return Tensor(np.random.default_rng(0).standard_normal(shape, np.float32)).realize()

    if case == "matmul":
        a, b = values(512, 512), values(512, 512)
        return lambda: (a @ b).realize()

    if case == "recurrent_forward":
        layer, sequence = nn.LSTM(32, 64), values(128, 8, 32)
        layer.parameters()[0].realize(*layer.parameters())
        return lambda: layer(sequence)[0].realize()

    count, width, tokens, heads = SIZES[case.partition("_")[0]]

    class Block(nn.Module):
        def __init__(self) -> None:
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiHeadAttention(width, heads)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(self.norm1(x))
            result: Tensor = x + self.down(self.up(self.norm2(x)).gelu())
            return result

    blocks = [Block() for _ in range(count)]
    weights = [weight for block in blocks for weight in block.parameters()]
    for weight in weights:
        weight.realize()
    x = values(1, tokens, width)

    def run() -> None:
        y = x
        for block in blocks:
            y = block(y)
        if case.endswith("forward"):
            y.realize()
            return
        loss = y.square().mean()
        loss.backward()
        loss.realize(*(weight.grad for weight in weights if weight.grad is not None))

    return run


def measure(case: str, functions: int) -> dict[str, Any]:
    """The first call in this process: phases, or the functions that took the most time."""
    run = work(case)
    from kernmill.runtime import counters, get_device

    get_device("LLVM").run([])  # the pool's start is not the compiler's
    before = counters.compiled, counters.from_disk
    if functions:
        profile = cProfile.Profile()
        profile.runcall(run)
        pstats.Stats(profile).sort_stats("tottime").print_stats(functions)
        return {}
    phases = Phases()
    watch(phases)
    phases.since, phases.wall_since = time.process_time(), time.perf_counter()
    run()
    phases.switch()
    wall_s = sum(time_s for name, time_s in phases.wall_s.items() if name != "run")
    return {"case": case, "wall_s": wall_s, "phases": phases.seconds,
            "compiled": counters.compiled - before[0], "from_disk": counters.from_disk - before[1]}  # fmt: skip


# --- the table -------------------------------------------------------------------------------------------------------
def child(case: str, folder: str, functions: int, process: int = 0) -> dict[str, Any]:
    """A case in a fresh process, with or without another that compiles."""
    ours = {"THREADS": "1", "CACHE_DIR": folder, "COMPILER_PROCESS": str(process), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **ours}
    command = [sys.executable, __file__, "--child", case, "--functions", str(functions)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    if functions:
        print(done.stdout)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cpu_of(found: dict[str, Any]) -> float:
    """CPU seconds without running the kernels."""
    phases: dict[str, float] = found["phases"]
    return sum(phases.values()) - phases.get("run", 0.0)


def both(case: str, runs: int, *, has_beside: bool = True) -> dict[str, dict[str, Any]]:
    """Cold and warm, each the best of some runs."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="kernmill-profile-") as folder:
            for state in ("cold", "warm"):
                found = child(case, folder, 0)
                if state not in best or cpu_of(found) < cpu_of(best[state]):
                    best[state] = found
        if not has_beside:
            continue
        with tempfile.TemporaryDirectory(prefix="kernmill-profile-") as folder:
            found = child(case, folder, 0, process=1)
            beside = min(found["wall_s"], best["cold"].get("beside_s", 1e9))
            best["cold"]["beside_s"] = beside
    return best


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Milliseconds by phase, a column a case."""
    columns = [(case, state) for case in results for state in ("cold", "warm")]
    names = list(dict.fromkeys(name for c, s in columns for name in results[c][s]["phases"]))
    names.sort(key=lambda name: -max(results[c][s]["phases"].get(name, 0.0) for c, s in columns))
    names = [name for name in names if name != "run"]

    def line(head: str, value: Callable[[dict[str, Any]], str]) -> str:
        return f"| {head} | {' | '.join(value(results[c][s]) for c, s in columns)} |"

    def milliseconds(seconds: float) -> str:
        return f"{seconds * 1e3:.1f}" if seconds >= 5e-5 else ""

    lines = [f"| ms of CPU | {' | '.join(f'{case}, {state}' for case, state in columns)} |",
             f"| --- | {' | '.join('--:' for _ in columns)} |",
             line("**all but running**", lambda found: f"**{cpu_of(found) * 1e3:.0f}**"),
             line("compiled / from disk", lambda found: f"{found['compiled']} / {found['from_disk']}")]  # fmt: skip
    lines += [line(name, lambda found, name=name: milliseconds(found["phases"].get(name, 0.0))) for name in names]  # type: ignore[misc]
    lines.append(line("running the kernels", lambda found: milliseconds(found["phases"].get("run", 0.0))))
    lines.append(line("on the clock, without running", lambda found: milliseconds(found["wall_s"])))
    lines.append(line("the same, with a second process that compiles", lambda f: milliseconds(f.get("beside_s", 0.0))))
    return "\n".join(lines)


def layers_table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Milliseconds of models of equal layers, and of a layer beyond the first."""
    lines = ["| ms of CPU | 1 layer | 12 | 24 | a layer beyond the first |", "| --- | --: | --: | --: | --: |"]
    for what in ("forward", "gradients"):
        for state in ("cold", "warm"):
            times = [1e3 * cpu_of(results[f"layers{count}_{what}"][state]) for count in (1, 12, 24)]
            shown = " | ".join(f"{time:.0f}" for time in times)
            lines.append(f"| {what}, {state} | {shown} | {(times[2] - times[0]) / 23:.1f} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, or the hottest functions of the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, *LAYERS, []], help=", ".join(CASES))
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="instead: the N hottest functions, cold")
    parser.add_argument("--layers", action="store_true", help="instead: models of 1, 12 and 24 equal layers")
    parser.add_argument("--runs", type=int, default=3, help="the best of so many (default %(default)s)")
    parser.add_argument("--child", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.functions)))
        return
    if arguments.layers:
        print(layers_table({case: both(case, arguments.runs, has_beside=False) for case in LAYERS}))
        return
    cases = arguments.cases or list(CASES)
    if arguments.functions:
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                child(case, folder, arguments.functions)
        return
    print(table({case: both(case, arguments.runs) for case in cases}))
    print()
    print("\n".join(f"* `{case}`: {ABOUT[case]}" for case in cases))


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `| head` reads no further: end, without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
