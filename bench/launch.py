"""Rows: a captured graph of 100 small kernels, and a captured call whose arguments change. What does launching cost?"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .expression import check
from .figures import show_seconds, spread
from .peers import peer
from .row import Goal, Prepared, Row, Sampler, Setup, WrongResult
from .timing import call_sampler, interleave

__all__ = ["LAUNCH_ROWS"]

_KERNELS = 100
_ELEMENTS = 1024


def chain(lib: Any, x: Any) -> Any:
    """100 kernels that kernmill can neither fuse nor join: each reads the one before from its end."""
    for _ in range(_KERNELS):
        x = apart(lib, x * 0.75 + 0.25)
    return x


def apart(lib: Any, x: Any) -> Any:
    """In memory and turned around, which an even number of times changes nothing; for kernmill only."""
    return x.flip(0).contiguous() if lib.__name__ == "kernmill" else x


def prepare(setup: Setup) -> Prepared:
    """kernmill captured; numpy and torch make two calls for each kernel of ours, their time is that of both."""
    array = np.random.default_rng(7).standard_normal(_ELEMENTS).astype(np.float32)
    reference = chain(np, array.astype(np.float64))
    samplers = {}
    for name in setup.peers:
        if name not in ("kernmill", "numpy", "torch"):  # the others fuse the chain into one kernel
            continue
        library = peer(name)
        call = library.bind(chain, [library.tensor(array)])
        for _ in range(3):
            check(name, library.array(call()), reference, 1e-5)
        samplers[name] = call_sampler(call, setup.sample_s, setup.threads, _KERNELS)
    if "kernmill" not in setup.peers:
        return Prepared(samplers)
    own = Own(array, setup)
    return Prepared(samplers, notes=own.notes, measured=own.overhead)


class Own:
    """The cost of launching, from kernels that have nothing to do: the same graph on two elements."""

    def __init__(self, array: Any, setup: Setup) -> None:
        self.setup = setup
        library = peer("kernmill")
        two = library.tensor(array[:2].copy())
        self.captured = library.bind(chain, [two])
        self.small = table(library.lib, two)
        self.large = table(library.lib, library.tensor(array))
        self.found: dict[str, float] = {}

    def measure(self) -> dict[str, float]:
        """Median seconds per kernel, taken once."""
        if not self.found:
            calls = {"captured": self.captured, "small": self.small.run, "large": self.large.run}
            samplers = {
                name: call_sampler(call, self.setup.sample_s, self.setup.threads, _KERNELS)
                for name, call in calls.items()
            }
            samplers["inside"] = lambda: sum(self.large.run(is_timed=True)) * 1e-9 / _KERNELS
            taken = interleave(samplers, self.setup.rounds)
            self.found = {name: spread(values).median for name, values in taken.items()}
        return self.found

    def overhead(self, _: Mapping[str, list[float]]) -> float:
        """Seconds per kernel of the captured call when the kernels do nothing: Python's share of the call included."""
        return self.measure()["captured"]

    def notes(self) -> list[str]:
        text = {name: show_seconds(value) for name, value in self.measure().items()}
        return [
            f"kernels of 2 elements: {text['captured']} each when captured, {text['small']} in the native table alone",
            f"with {_ELEMENTS}: {text['large']} in the table alone, {text['inside']} inside by the table's own clock",
        ]


def table(lib: Any, given: Any) -> Any:
    """The chain on a tensor as a prepared batch of its device, without jit. Keeps what it works on."""
    runtime = importlib.import_module("kernmill.runtime")
    given.realize()
    with runtime.recording() as recorded:
        result = chain(lib, given).realize()
    calls = [call for step in recorded.steps for call in step.calls]
    if len(calls) != _KERNELS:
        raise WrongResult(f"kernmill: the graph has {len(calls)} kernels, not {_KERNELS}: no measure of launching")
    batch = runtime.get_device().prepare(calls)
    batch.kept = (given, result, recorded)
    return batch


# --- one op a kernel -------------------------------------------------------------------------------------------------
def products(lib: Any, x: Any) -> Any:
    """100 multiplications of 16 floats, each of which is a call of eager torch and a kernel of kernmill's."""
    for _ in range(_KERNELS):
        x = apart(lib, x * 1.001)
    return x


def prepare_products(setup: Setup) -> Prepared:
    """The same work a kernel: one product. numpy and torch call 100 times, kernmill once."""
    array = np.random.default_rng(7).standard_normal(16).astype(np.float32)
    reference = products(np, array.astype(np.float64))
    samplers = {}
    for name in setup.peers:
        if name in ("kernmill", "numpy", "torch"):
            library = peer(name)
            call = library.bind(products, [library.tensor(array)])
            for _ in range(3):
                check(name, library.array(call()), reference, 1e-4)
            samplers[name] = call_sampler(call, setup.sample_s, setup.threads, _KERNELS)
    return Prepared(samplers)


# --- OpenCL ---
def prepare_enqueues(setup: Setup) -> Prepared:
    """A captured graph on the first OpenCL device, and its kernels enqueued by pyopencl with all arguments set."""
    if "opencl" not in setup.peers:
        return Prepared({}, notes=lambda: ["asked for with --peers opencl"])
    library = peer("opencl")
    given = library.tensor(np.random.default_rng(7).standard_normal(16).astype(np.float32))
    captured = library.bind(chain, [given])
    for _ in range(3):
        check("opencl", library.array(captured()), chain(np, given.numpy().astype(np.float64)), 1e-5)
    with library.lib.Context(DEVICE="CL"):
        batch = table(library.lib, given)
    binding, queue = importlib.import_module("pyopencl"), batch.device.queue

    def bare() -> None:
        for kernel, size, group in batch.entries:
            binding.enqueue_nd_range_kernel(queue, kernel, size, group)
        queue.finish()

    calls = {"kernmill": captured, "ceiling": bare}
    return Prepared({
        name: call_sampler(call, setup.sample_s, setup.threads, _KERNELS) for name, call in calls.items()
    })  # fmt: skip


# --- arguments -------------------------------------------------------------------------------------------------------
_ARGUMENTS = 8


def mixed(_: Any, *given: Any) -> Any:
    """One small kernel of many arguments."""
    total = given[0]
    for one in given[1:]:
        total = total + one
    return total * 0.125


def prepare_arguments(setup: Setup) -> Prepared:
    """Two sets of arguments in turn: every address is another one at each call."""
    rng = np.random.default_rng(7)
    sets = [[rng.standard_normal(16).astype(np.float32) for _ in range(_ARGUMENTS)] for _ in range(2)]
    samplers: dict[str, Sampler] = {}
    notes: list[str] = []
    for name in setup.peers:
        if name not in ("kernmill", "torch.compile", "jax", "tinygrad"):
            continue
        library = peer(name)
        made = [[library.tensor(array) for array in one] for one in sets]
        step = library.function(mixed)
        for _ in range(3):
            for given, arrays in zip(made, sets, strict=True):
                check(name, library.array(step(*given)), mixed(np, *(a.astype(np.float64) for a in arrays)), 1e-5)
        samplers[name] = call_sampler(partial(in_turn, step, made), setup.sample_s, setup.threads, 2)
        if name == "kernmill":
            same = call_sampler(partial(step, *made[0]), setup.sample_s, setup.threads)
            notes.append(f"kernmill with the same arguments again: {show_seconds(min(same() for _ in range(3)))}")
    return Prepared(samplers, notes=lambda: notes)


def in_turn(step: Any, made: list[list[Any]]) -> Any:
    return [step(*given) for given in made]


LAUNCH_ROWS = [
    Row("opencl_enqueue", f"one of {_KERNELS} dependent kernels on 16 floats, captured, DEVICE=CL; ceiling: pyopencl's "
        "enqueues of the same kernels, arguments set", prepare_enqueues, goals=(Goal("ceiling", 1 / 1.2),)),
    Row(f"graph_{_KERNELS}", f"one of {_KERNELS} dependent kernels on {_ELEMENTS} floats (x * 0.75 + 0.25), captured",
        prepare, goals=(Goal(limit=1e-6),)),
    Row(f"launch_{_KERNELS}", f"one of {_KERNELS} dependent products of 16 floats, captured; torch and numpy op by op",
        prepare_products, goals=(Goal("torch", 50.0),)),
    Row("jit_arguments", f"a captured call of one small kernel with {_ARGUMENTS} arguments, others at each call",
        prepare_arguments, goals=(Goal("best", 1.0),)),
]  # fmt: skip
