"""Rows: two threads while another process holds one core: a process of ours that counts for as long as a row runs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
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
_LONGER = 5  # times the usual sample: the system hands out a core for some milliseconds at a time
_LEAST = 0.3  # of a core: with less the process did not hold one
_TRIES = 3  # at a sample in which it does


class Hog:
    """A process that does nothing but count, and ends when it is told to or when we are gone."""

    def __init__(self) -> None:
        code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
        self.process = subprocess.Popen([sys.executable, "-c", code])

    def cpu_s(self) -> float:
        """Seconds that it has run; nan where the system does not say."""
        if sys.platform != "linux":
            return float("nan")
        return time.clock_gettime(
            ~self.process.pid << 3 | 2
        )  # the clock of another process, as clock_getcpuclockid has it

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


class Beside:
    """What a hog had of a core in each sample. Until there is one, it is nobody's."""

    def __init__(self) -> None:
        self.hog: Hog | None = None
        self.shares: dict[str, list[float]] = {}
        self.again = 0
        self._last = self._now = 0.0, 0.0

    def clock(self) -> float:
        """The time, for a sample: what the hog has run is noted with it."""
        now = time.perf_counter()
        self._last, self._now = self._now, (now, self.hog.cpu_s() if self.hog else 0.0)
        return now

    def share(self) -> float:
        """Of a core, in the last sample."""
        (start, before), (end, after) = self._last, self._now
        return (after - before) / (end - start)

    def sampler(self, name: str, call: Callable[[], Any], setup: Setup) -> Sampler:
        """Samples of a call, each taken again where the hog was not running."""
        plain = call_sampler(
            call, setup.sample_s if setup.tiny else _LONGER * setup.sample_s, setup.threads, clock=self.clock
        )
        shares = self.shares[name] = []

        def sample() -> float:
            for tried in range(_TRIES):
                spent = plain()
                if not self.share() < _LEAST:
                    break
                self.again += tried + 1 < _TRIES
            shares.append(self.share())
            return spent

        return sample

    def notes(self) -> list[str]:
        """For the table."""
        had = ", ".join(
            f"{statistics.median(shares):.0%} beside {name}" for name, shares in self.shares.items() if shares
        )
        return [
            f"the other process had of a core {had}; samples taken again as it had less than {_LEAST:.0%}: {self.again}"
        ]


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
    beside = Beside()
    for name in names:
        samplers[name] = beside.sampler(name, call_of(name), setup)
        if name == "kernmill":
            samplers[_ONE] = beside.sampler(_ONE, in_one_thread(partial(call_of, name)), setup)
    beside.hog = hog = Hog()
    return Prepared(samplers, notes=beside.notes, close=hog.close)


def row(name: str, about: str, prepare: Callable[[Setup], Prepared]) -> Row:
    return Row(f"hog_{name}", f"{about}, while another process holds a core; one thread: kernmill's", prepare,
               goals=(Goal(_ONE, 1.0), Goal("torch", 1.0)), only_threads=2)  # fmt: skip


HOG_ROWS = [
    *(row(f"matmul_{n}", f"float32 matrix product, {n} x {n} x {n}", partial(prepare_product, n)) for n in (256, 512)),
    row("mlp_step", "training step of the MLP, batch 128", prepare_mlp),
]
