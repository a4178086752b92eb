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

from .peers import peer, thread_environment
from .row import Goal, Prepared, Row, Setup, WrongResult

__all__ = ["FRESH_ROWS", "run_fresh"]

ROOT = Path(__file__).resolve().parent.parent

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
}
_COUNTERS = """
import sys
from kernmill.runtime import counters
facts['compiled'], facts['from_disk'] = counters.compiled, counters.from_disk
facts['llvmlite'] = any(name.partition('.')[0] == 'llvmlite' for name in sys.modules)
"""


def run_fresh(code: str, setup: Setup, cache: str = "") -> dict[str, Any]:
    """Run a program that prints end_ns; what it printed, with `seconds` from before it was started until then."""
    environment = thread_environment(setup.threads)
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # byte code is there wherever kernmill was installed or used before
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{given}" if given else str(ROOT)
    if cache:
        environment["CACHE_DIR"] = cache
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

    statements = {"python": "", **{name: f"import {peer(name).module}" for name in setup.peers}}
    if setup.tiny:
        sample("import kernmill")
    return Prepared({name: partial(sample, statement) for name, statement in statements.items()})


# --- first result ----------------------------------------------------------------------------------------------------
def first_program(name: str, size: int) -> str:
    """From nothing to a product in memory; then, outside the clock, whether it is right and what was compiled."""
    text = _INPUTS.replace("SIZE", str(size)) + _FIRST[name] + _END + _CHECK
    return text + (_COUNTERS if name == "kernmill" else "") + _PRINT


def checked(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    if not facts["is_right"]:
        raise WrongResult(f"{name}: the product is wrong")
    return facts


class FirstResult:
    """The row's state: its cache folder, gone with the row, and what the last kernmill process counted."""

    def __init__(self, setup: Setup, is_warm: bool) -> None:
        self.setup, self.is_warm = setup, is_warm
        self.size = 16 if setup.tiny else 512
        self.folder = tempfile.mkdtemp(prefix="kernmill-bench-")
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.counted: dict[str, Any] = {}
        if is_warm:
            run_fresh(first_program("kernmill", self.size), setup, self.folder)

    def kernmill(self) -> float:
        """One process with an empty cache folder, or with the one that was filled."""
        code = first_program("kernmill", self.size)
        if self.is_warm:
            facts = run_fresh(code, self.setup, self.folder)
        else:
            with tempfile.TemporaryDirectory(prefix="kernmill-bench-") as empty:
                facts = run_fresh(code, self.setup, empty)
        self.counted = checked("kernmill", facts)
        if self.is_warm and (facts["compiled"] or facts["llvmlite"]):
            raise WrongResult(
                f"the warm run compiled {facts['compiled']} kernels (llvmlite loaded: {facts['llvmlite']})"
            )
        if not self.is_warm and not facts["compiled"]:
            raise WrongResult("the cold run compiled nothing: it was not cold")
        return float(facts["seconds"])

    def other(self, name: str) -> float:
        """A peer that has no cache."""
        return float(checked(name, run_fresh(first_program(name, self.size), self.setup))["seconds"])

    def notes(self) -> list[str]:
        found = self.counted
        if not found:
            return []
        llvmlite = "imported" if found["llvmlite"] else "not imported"
        return [f"{found['compiled']} compiled, {found['from_disk']} from disk, llvmlite {llvmlite}"]


def prepare_first(is_warm: bool, setup: Setup) -> Prepared:
    state = FirstResult(setup, is_warm)
    samplers: dict[str, Callable[[], float]] = {}
    for name in setup.peers:
        if name in _FIRST:
            samplers[name] = state.kernmill if name == "kernmill" else partial(state.other, name)
    if setup.tiny:
        samplers["kernmill"]()
    return Prepared(samplers, notes=state.notes)


FRESH_ROWS = [
    Row("import", "import in a fresh process, bare Python's time taken off", prepare_import, once=True,
        baseline="python", goals=(Goal(limit=0.15),), most_rounds=15),
    Row("first_cold", "first 512 x 512 product in a fresh process, start and imports included, empty cache",
        partial(prepare_first, False), once=True, goals=(Goal(limit=0.4),), most_rounds=9),
    Row("first_warm", "the same, kernels in the cache", partial(prepare_first, True), once=True,
        goals=(Goal(limit=0.2),), most_rounds=9),
]  # fmt: skip
