"""Rows: one training step of a small convolutional network on batches of 128 images, its time and its memory.

Both sides do the whole step: forward, cross entropy, gradients, Adam. The reference is written out in NumPy in float64.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .figures import show_bytes
from .fresh_rows import run_fresh
from .peers import captured
from .row import Goal, Prepared, Row, Setup, WrongResult
from .timing import call_sampler

__all__ = ["TRAIN_ROWS", "memory_child"]

Array = np.ndarray[Any, Any]
Step = Callable[[], Any]

_BATCH = 128
_STEPS_CHECKED = 4
_LR, _B1, _B2, _EPS = 1e-3, 0.9, 0.999, 1e-8


def problem(batch: int) -> tuple[list[Array], Array, Array]:
    """Start values of w1, b1, w2, b2, w3, b3; images; labels."""
    rng = np.random.default_rng(7)
    shapes = [((16, 1, 5, 5), 25), ((16,), 25), ((32, 16, 3, 3), 144), ((32,), 144), ((10, 800), 800), ((10,), 800)]
    params = [(rng.uniform(-1, 1, shape) / fan_in**0.5).astype(np.float32) for shape, fan_in in shapes]
    return params, rng.random((batch, 1, 28, 28), np.float32), rng.integers(0, 10, batch)


# --- the peers -------------------------------------------------------------------------------------------------------
def kernmill_step(batch: int) -> Step:
    """The step as a call that returns the loss."""
    kernmill = importlib.import_module("kernmill")
    start, images, labels = problem(batch)
    params = [kernmill.Tensor(p, requires_grad=True) for p in start]
    optimizer = importlib.import_module("kernmill.nn").optim.Adam(params, _LR, (_B1, _B2), _EPS)
    x, y = kernmill.Tensor(images), kernmill.Tensor(labels)

    def step(x: Any, y: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = params
        optimizer.zero_grad()
        hidden = x.conv2d(w1, b1).relu().max_pool2d(2)
        hidden = hidden.conv2d(w2, b2).relu().max_pool2d(2)
        loss = hidden.flatten(1).linear(w3, b3).cross_entropy(y)
        loss.backward()
        optimizer.step(loss)
        return loss

    return partial(captured(step), x, y)


def torch_step(batch: int) -> Step:
    """Eager, with torch's fused Adam: the fastest of its three."""
    torch = importlib.import_module("torch")
    functional = torch.nn.functional
    start, images, labels = problem(batch)
    params = [torch.from_numpy(p.copy()).requires_grad_() for p in start]
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(params, _LR, (_B1, _B2), _EPS, fused=True)

    def step() -> Any:
        w1, b1, w2, b2, w3, b3 = params
        optimizer.zero_grad()
        hidden = functional.max_pool2d(functional.relu(functional.conv2d(x, w1, b1)), 2)
        hidden = functional.max_pool2d(functional.relu(functional.conv2d(hidden, w2, b2)), 2)
        loss = functional.cross_entropy(functional.linear(hidden.flatten(1), w3, b3), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


STEPS: dict[str, Callable[[int], Step]] = {"kernmill": kernmill_step, "torch": torch_step}


# --- the reference ---------------------------------------------------------------------------------------------------
def windows(x: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))


def conv(x: Array, weight: Array, bias: Array) -> Array:
    return np.einsum("bcyxij,ocij->boyx", windows(x, weight.shape[2]), weight, optimize=True) + bias[:, None, None]  # type: ignore[no-any-return]


def conv_grads(x: Array, weight: Array, grad: Array) -> tuple[Array, Array, Array]:
    """Gradients of the input, the weight and the bias."""
    size = weight.shape[2]
    of_weight = np.einsum("bcyxij,boyx->ocij", windows(x, size), grad, optimize=True)
    padded = np.pad(grad, ((0, 0), (0, 0), (size - 1, size - 1), (size - 1, size - 1)))
    of_input = np.einsum("boyxij,ocij->bcyx", windows(padded, size), weight[:, :, ::-1, ::-1], optimize=True)
    return of_input, of_weight, grad.sum((0, 2, 3))


def relu_pool(x: Array) -> tuple[Array, Array]:
    """max_pool2d(relu(x), 2), and where each value came from."""
    blocks = np.maximum(x, 0).reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2)
    best = blocks.max((3, 5), keepdims=True)
    return best[:, :, :, 0, :, 0], ((blocks == best) & (blocks > 0)).reshape(x.shape)


def spread_back(grad: Array, came_from: Array) -> Array:
    return grad.repeat(2, 2).repeat(2, 3) * came_from


def loss_and_grads(params: list[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    w1, b1, w2, b2, w3, b3 = params
    h1, from1 = relu_pool(conv(x, w1, b1))
    h2, from2 = relu_pool(conv(h1, w2, b2))
    flat = h2.reshape(len(x), -1)
    logits = flat @ w3.T + b3
    logits -= logits.max(1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    grad = (np.exp(log_p) - np.eye(10)[y]) / len(x)
    of_h2 = spread_back((grad @ w3).reshape(h2.shape), from2)
    of_h1, gw2, gb2 = conv_grads(h1, w2, of_h2)
    _, gw1, gb1 = conv_grads(x, w1, spread_back(of_h1, from1))
    return -float(log_p[np.arange(len(x)), y].mean()), [gw1, gb1, gw2, gb2, grad.T @ flat, grad.sum(0)]


def reference_losses(batch: int, steps: int) -> list[float]:
    """The loss before each of the first steps, in float64."""
    start, images, labels = problem(batch)
    params = [p.astype(np.float64) for p in start]
    means, squares = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    losses = []
    for t in range(1, steps + 1):
        loss, grads = loss_and_grads(params, images.astype(np.float64), labels)
        losses.append(loss)
        for p, m, v, g in zip(params, means, squares, grads, strict=True):
            m[...] = m * _B1 + g * (1 - _B1)
            v[...] = v * _B2 + g * g * (1 - _B2)
            p -= _LR * (m / (1 - _B1**t)) / (np.sqrt(v / (1 - _B2**t)) + _EPS)
    return losses


# --- rows ------------------------------------------------------------------------------------------------------------
def prepare_step(setup: Setup) -> Prepared:
    """The first losses of every peer are compared: wrong gradients or a wrong optimizer show in the second."""
    batch = 4 if setup.tiny else _BATCH
    right = reference_losses(batch, _STEPS_CHECKED)
    samplers = {}
    for name in setup.peers:
        if name in STEPS:
            step = STEPS[name](batch)
            losses = [float(np.asarray(step())) for _ in right]
            if not np.allclose(losses, right, rtol=1e-4):
                raise WrongResult(f"{name}: losses {losses} instead of {right}")
            samplers[name] = call_sampler(step, setup.sample_s, setup.threads)
    return Prepared(samplers)


def resident(field: str) -> int:
    """Bytes from /proc/self/status: VmRSS, what is resident; VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def memory_child(name: str, batch: int) -> None:
    """In a process of its own: what the step adds to the resident memory, printed as JSON."""
    STEPS[name](2)()  # imports everything
    step = STEPS[name](batch)
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
        kept, least = step.func.memory()
        return {"kept": kept, "least": least}
    runtime = importlib.import_module("kernmill.runtime")
    memories = [plan.memory for plan in getattr(runtime.execute, "_plans", {}).values()]  # no face for this
    if not memories:
        return {}
    most = max(memories, key=lambda m: m.unplanned_bytes)
    return {"kept": sum(most.arena_bytes.values()), "least": most.lower_bound_bytes}


def prepare_memory(setup: Setup) -> Prepared:
    """A fresh process for each sample; kernmill's kernels lie in the cache, so that no compiler is counted."""
    if not Path("/proc/self/clear_refs").exists():
        raise NotImplementedError("peak memory is read from /proc, which this system has not")
    facts: dict[str, Any] = {}

    def sample(name: str) -> float:
        batch = 4 if setup.tiny else _BATCH
        code = f"from bench.train_rows import memory_child; memory_child({name!r}, {batch})"
        facts[name] = found = run_fresh(code, setup)
        return float(found["grown"])

    def notes() -> list[str]:
        found = facts.get("kernmill", {})
        if "kept" not in found:
            return []
        return [f"{show_bytes(found['kept'])} kept for intermediates, lower bound {show_bytes(found['least'])}"]

    if "kernmill" in setup.peers:
        sample("kernmill")  # fills the cache
    samplers = {name: partial(sample, name) for name in setup.peers if name in STEPS}
    return Prepared(samplers, notes=notes)


_STEP = f"training step of conv5x5(1-16), relu, pool, conv3x3(16-32), relu, pool, linear with Adam, batch {_BATCH}"
TRAIN_ROWS = [
    Row("convnet_step", f"{_STEP}, captured", prepare_step, goals=(Goal("torch", 1.0),)),
    Row("convnet_memory", "peak bytes that three such steps add to the process: gradients, optimizer, intermediates",
        prepare_memory, quantity="B", most_rounds=3),
]  # fmt: skip
