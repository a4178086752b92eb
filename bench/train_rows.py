"""Rows: one training step of two small networks on batches of 128 images, its time and its memory; memory of inference.

Every side does the whole step: forward, cross entropy, gradients, Adam. The reference is NumPy in float64.
"""

from __future__ import annotations

import importlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .figures import show_bytes
from .fresh_rows import run_fresh
from .models import CONVNET, MLP, MODELS, Model, reference_losses
from .row import Goal, Prepared, Row, Setup, WrongResult
from .steps import FORWARDS, STEPS
from .timing import call_sampler

__all__ = ["TRAIN_ROWS", "checked_step", "memory_child"]

_BATCH = 128
_STEPS_CHECKED = 4


def checked_step(name: str, model: Model, batch: int, right: list[float]) -> Any:
    """A peer's step, its first losses compared: wrong gradients or a wrong optimizer show in the second."""
    step = STEPS[name](model, batch)
    losses = [float(np.asarray(step())) for _ in right]
    if not np.allclose(losses, right, rtol=1e-4):
        raise WrongResult(f"{name}: losses {losses} instead of {right}")
    return step


def prepare_step(model: Model, setup: Setup) -> Prepared:
    """Another peer than kernmill that fails is left out, with a note."""
    batch = 4 if setup.tiny else _BATCH
    right = reference_losses(model, batch, _STEPS_CHECKED)
    samplers, notes = {}, []
    for name in setup.peers:
        if name not in STEPS:
            continue
        try:
            step = checked_step(name, model, batch, right)
        except Exception as error:
            if name == "kernmill" or setup.tiny:
                raise
            notes.append(f"{name} left out: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
            continue
        samplers[name] = call_sampler(step, setup.sample_s, setup.threads)
    return Prepared(samplers, notes=lambda: notes)


def resident(field: str) -> int:
    """Bytes from /proc/self/status: VmRSS, what is resident; VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def memory_child(name: str, model: str, is_step: bool, batch: int) -> None:
    """In a process of its own: what the step adds to the resident memory, printed as JSON."""
    makers = STEPS if is_step else FORWARDS
    makers[name](MODELS[model], 2)()  # imports everything
    step = makers[name](MODELS[model], batch)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident now
    for _ in range(3):
        step()
    facts: dict[str, int] = {"grown": resident("VmHWM") - before}
    if name == "kernmill":
        facts |= planned(step)
    print(json.dumps({"end_ns": time.monotonic_ns(), **facts}))


def planned(step: Any) -> dict[str, int]:
    """Bytes kept for intermediates, and the least that would do: of the capture, else of the largest graph."""
    if hasattr(step.func, "memory"):
        kept, least, _ = step.func.memory()
        return {"kept": kept, "least": least}
    runtime = importlib.import_module("kernmill.runtime")
    memories = [plan.memory for plan in runtime.plan.plans.values()]
    if not memories:
        return {}
    most = max(memories, key=lambda m: m.unplanned_bytes)
    return {"kept": sum(most.arena_bytes.values()), "least": most.lower_bound_bytes}


def prepare_memory(model: Model, is_step: bool, setup: Setup) -> Prepared:
    """A fresh process for each sample; kernmill's kernels lie in the cache, so that no compiler is counted."""
    if not Path("/proc/self/clear_refs").exists():
        raise NotImplementedError("peak memory is read from /proc, which this system has not")
    facts: dict[str, Any] = {}

    def sample(name: str) -> float:
        batch = 4 if setup.tiny else _BATCH
        call = f"memory_child({name!r}, {model.name!r}, {is_step}, {batch})"
        facts[name] = found = run_fresh(f"from bench.train_rows import memory_child; {call}", setup)
        return float(found["grown"])

    def notes() -> list[str]:
        found = facts.get("kernmill", {})
        if "kept" not in found:
            return []
        return [f"{show_bytes(found['kept'])} kept for intermediates, lower bound {show_bytes(found['least'])}"]

    if "kernmill" in setup.peers:
        sample("kernmill")  # fills the cache
    samplers = {name: partial(sample, name) for name in setup.peers if name in FORWARDS}
    return Prepared(samplers, notes=notes)


def time_row(model: Model) -> Row:
    about = f"training step of {model.about} with Adam, batch {_BATCH}, captured"
    return Row(f"{model.name}_step", about, partial(prepare_step, model), goals=(Goal("best", 1.2),))


def memory_row(model: Model, is_step: bool) -> Row:
    what = "three such training steps: gradients, optimizer, intermediates" if is_step else "three forward passes"
    name = f"{model.name}_{'step' if is_step else 'forward'}_memory"
    about = f"peak bytes that are added to the process by {what}; {model.about}, batch {_BATCH}"
    return Row(name, about, partial(prepare_memory, model, is_step), quantity="B", most_rounds=3)


TRAIN_ROWS = [
    *(time_row(model) for model in (MLP, CONVNET)),
    *(memory_row(model, is_step) for model in (MLP, CONVNET) for is_step in (True, False)),
]
