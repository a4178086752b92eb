"""Rows: two threads while another process holds one core: a process of ours that counts for as long as a row runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .expression import check
from .models import MLP, reference_losses
from .peers import peer
from .row import Goal, Prepared, Row, Sampler, Setup
from .timing import call_sampler
from .train_rows import checked_step

__all__ = ["HOG_ROWS", "Hog"]

_ONE = "one thread"  # kernmill, in the same conditions
_PEERS = ("kernmill", "numpy", "torch")


class Hog:
    """A process that does nothing but count, and ends when it is told to or when we are gone."""

    def __init__(self) -> None:
        code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
        self.process = subprocess.Popen([sys.executable, "-c", code])

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def in_one_thread(make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """kernmill's call under THREADS=1."""
    from kernmill import Context

    with Context(THREADS=1):
        call = make()

    def run() -> Any:
        with Context(THREADS=1):
            return call()

    return run


def prepare_product(n: int, setup: Setup) -> Prepared:
    """kernmill with all threads and with one, numpy and torch, of which the third result is compared."""
    n = 9 if setup.tiny else n
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((n, n), np.float32) for _ in range(2)]
    reference = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)

    def call_of(name: str) -> Callable[[], Any]:
        library = peer(name)
        call = library.bind(lambda _, a, b: a @ b, [library.tensor(a) for a in arrays])
        for _ in range(3):
            check(name, library.array(call()), reference, 2e-5)
        return call

    return with_hog(call_of, setup, [name for name in setup.peers if name in _PEERS])


def prepare_mlp(setup: Setup) -> Prepared:
    batch = 4 if setup.tiny else 128
    right = reference_losses(MLP, batch, 4)
    names = [name for name in setup.peers if name in ("kernmill", "torch")]
    return with_hog(lambda name: checked_step(name, MLP, batch, right), setup, names)


def with_hog(call_of: Callable[[str], Callable[[], Any]], setup: Setup, names: list[str]) -> Prepared:
    """The samplers of the calls, and a process beside them until the row is done."""
    samplers: dict[str, Sampler] = {}
    for name in names:
        samplers[name] = call_sampler(call_of(name), setup.sample_s, setup.threads)
        if name == "kernmill":
            samplers[_ONE] = call_sampler(in_one_thread(partial(call_of, name)), setup.sample_s, setup.threads)
    hog = Hog()
    return Prepared(samplers, close=hog.close)


def row(name: str, about: str, prepare: Callable[[Setup], Prepared]) -> Row:
    return Row(f"hog_{name}", f"{about}, while another process holds a core; one thread: kernmill's", prepare,
               goals=(Goal(_ONE, 1.0), Goal("torch", 1.0)), only_threads=2)  # fmt: skip


HOG_ROWS = [
    *(row(f"matmul_{n}", f"float32 matrix product, {n} x {n} x {n}", partial(prepare_product, n)) for n in (256, 512)),
    row("mlp_step", "training step of the MLP, batch 128", prepare_mlp),
]
