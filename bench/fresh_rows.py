"""Rows measured in fresh processes: importing, and the time until a first result is there, cold and warm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .peers import PEERS, thread_environment
from .row import Goal, Prepared, Row, Setup, WrongResult

__all__ = ["COUNTERS", "FRESH_ROWS", "FreshRuns", "run_fresh"]

ROOT = Path(__file__).resolve().parent.parent

_ONCE_S = 2.0
_END = "\nimport time\nend_ns = time.monotonic_ns()\nfacts = {}\n"
_PRINT = "\nimport json\nprint(json.dumps({'end_ns': end_ns, **facts}))\n"

# Whole numbers, so that float32 gives the reference's result to the last bit.
_INPUTS = """
import numpy as np
n = SIZE
a = (np.arange(n * n) % 7 - 3).astype(np.float32).reshape(n, n)
b = (np.arange(n * n) % 5 - 2).astype(np.float32).reshape(n, n)
"""
_CHECK = """
right = a.astype(np.float64) @ b.astype(np.float64)
facts["is_right"] = bool((np.asarray(c) == right).all())
"""
_FIRST = {
    "kernmill": "from kernmill import Tensor\nc = (Tensor(a) @ Tensor(b)).realize()",
    "numpy": "c = a @ b",
    "torch": "import torch\nc = torch.from_numpy(a) @ torch.from_numpy(b)",
    "torch.compile": "import torch\n"
                     "c = torch.compile(lambda a, b: a @ b)(torch.from_numpy(a), torch.from_numpy(b))",
    "jax": "import jax\nc = jax.jit(lambda a, b: a @ b)(a, b).block_until_ready()",
    "tinygrad": "from tinygrad import Tensor\nc = (Tensor(a) @ Tensor(b)).numpy()",
}  # fmt: skip
CACHING = ("kernmill", "torch.compile", "jax", "tinygrad")
COUNTERS = """
import sys
from kernmill.runtime import counters
facts['compiled'], facts['from_disk'] = counters.compiled, counters.from_disk
facts['llvmlite'] = any(name.partition('.')[0] == 'llvmlite' for name in sys.modules)
"""


def cache_environment(folder: str) -> dict[str, str]:
    """Every peer's cache of compiled code in one folder. jax keeps nothing unless it is told to."""
    return {
        "CACHE_DIR": f"{folder}/kernmill", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "CACHEDB": f"{folder}/tinygrad.db", "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip


def run_fresh(code: str, setup: Setup, cache: str = "") -> dict[str, Any]:
    """Run a program that prints end_ns; what it printed, with `seconds` from before it was started until then."""
    environment = thread_environment(setup.threads)
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # byte code is there wherever kernmill was installed or used before
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{given}" if given else str(ROOT)
    environment |= cache_environment(cache) if cache else {}
    start_ns = time.monotonic_ns()  # one clock for all processes of the machine
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise WrongResult(f"a fresh process failed: {lines[-1]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    facts["seconds"] = (facts["end_ns"] - start_ns) * 1e-9
    return facts


# --- import ----------------------------------------------------------------------------------------------------------
def prepare_import(setup: Setup) -> Prepared:
    """Bare Python is one of the peers; its time is taken off the others', round by round."""

    def sample(statement: str) -> float:
        seconds: float = run_fresh(statement + _END + _PRINT, setup)["seconds"]
        return seconds

    modules = dict.fromkeys(PEERS[name].module for name in setup.peers)
    statements = {"python": "", **{module: f"import {module}" for module in modules}}
    if setup.tiny:
        sample("import kernmill")
    return Prepared({name: partial(sample, statement) for name, statement in statements.items()})


# --- first result ----------------------------------------------------------------------------------------------------
def first_program(name: str, size: int) -> str:
    """From nothing to a product in memory; then, outside the clock, whether it is right and what was compiled."""
    text = _INPUTS.replace("SIZE", str(size)) + _FIRST[name] + _END + _CHECK
    return text + (COUNTERS if name == "kernmill" else "") + _PRINT


def checked(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    if not facts["is_right"]:
        raise WrongResult(f"{name}: the product is wrong")
    return facts


class FreshRuns:
    """A row's state: the programs, a cache folder of each peer that keeps one, and what the last processes said."""

    def __init__(self, setup: Setup, programs: dict[str, str], is_warm: bool) -> None:
        self.setup, self.programs, self.is_warm = setup, programs, is_warm
        self.facts: dict[str, dict[str, Any]] = {}
        self.folder = tempfile.mkdtemp(prefix="kernmill-bench-")
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.filled: set[str] = set()

    def run(self, name: str) -> dict[str, Any]:
        """One process, with an empty cache folder or with one that an earlier process filled."""
        if name not in CACHING:
            facts = run_fresh(self.programs[name], self.setup)
        elif self.is_warm:
            cache = f"{self.folder}/{name}"
            if name not in self.filled:
                run_fresh(self.programs[name], self.setup, cache)
                self.filled.add(name)
            facts = run_fresh(self.programs[name], self.setup, cache)
        else:
            with tempfile.TemporaryDirectory(prefix="kernmill-bench-") as empty:
                facts = run_fresh(self.programs[name], self.setup, empty)
        self.facts[name] = checked(name, facts)
        if name == "kernmill":
            self.was(facts)
        return facts

    def was(self, facts: dict[str, Any]) -> None:
        """kernmill's counters say what they should: nothing compiled when warm, something when cold."""
        if self.is_warm and (facts["compiled"] or facts["llvmlite"]):
            raise WrongResult(
                f"the warm run compiled {facts['compiled']} kernels (llvmlite loaded: {facts['llvmlite']})"
            )
        if not self.is_warm and not facts["compiled"]:
            raise WrongResult("the cold run compiled nothing: it was not cold")

    def seconds(self, name: str) -> float:
        """A sample."""
        return float(self.run(name)["seconds"])

    def notes(self) -> list[str]:
        found = self.facts.get("kernmill")
        if not found:
            return []
        llvmlite = "imported" if found["llvmlite"] else "not imported"
        return [f"{found['compiled']} compiled, {found['from_disk']} from disk, llvmlite {llvmlite}"]

    def prepared(self) -> Prepared:
        """Every program is run once (with `tiny` only kernmill's): a peer that fails is left out, with a note."""
        samplers: dict[str, Callable[[], float]] = {}
        remarks: list[str] = []
        for name in self.programs:
            spent = 0.0
            try:
                if not self.setup.tiny or name == "kernmill":
                    spent = self.seconds(name)
            except WrongResult as error:
                if name == "kernmill":
                    raise
                remarks.append(f"{name} left out: {error}"[:200])
                continue
            if name != "kernmill" and spent > _ONCE_S:  # so slow that this one process says enough
                samplers[name] = partial(float, spent)
                remarks.append(f"{name}: one process only, before the rounds")
            else:
                samplers[name] = partial(self.seconds, name)
        return Prepared(samplers, notes=lambda: [*self.notes(), *remarks])


def prepare_first(is_warm: bool, setup: Setup) -> Prepared:
    size = 16 if setup.tiny else 512
    programs = {name: first_program(name, size) for name in setup.peers if name in _FIRST}
    return FreshRuns(setup, programs, is_warm).prepared()


_FIRST_GOALS = (Goal("jax", 5.0), Goal("torch.compile", 5.0), Goal("tinygrad", 3.0))
FRESH_ROWS = [
    Row("import", "import in a fresh process, bare Python's time taken off", prepare_import, once=True,
        baseline="python", goals=(Goal(limit=0.15),), most_rounds=7),
    Row("first_cold", "first 512 x 512 product in a fresh process, start and imports included, empty cache",
        partial(prepare_first, False), once=True, goals=(Goal(limit=0.4), *_FIRST_GOALS), most_rounds=5),
    Row("first_warm", "the same, kernels in the cache", partial(prepare_first, True), once=True,
        goals=(Goal(limit=0.2), *_FIRST_GOALS), most_rounds=5),
]  # fmt: skip
