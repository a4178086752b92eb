"""Rows that are one expression on tensors: the table of them, and how such a row is checked and prepared.

Each peer gets the best ordinary form that its users write, without `out=`: every result is a new tensor, ours too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .peers import peer
from .row import Goal, Prepared, Row, Setup, WrongResult
from .timing import call_sampler

__all__ = ["TENSOR_ROWS", "check", "prepare_expression"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]


@dataclass(frozen=True)
class Expression:
    """The work of a row: `inputs` from a size, `reference` in float64, `run[peer](library, *tensors)`."""

    size: Size
    tiny: Size
    inputs: Callable[[np.random.Generator, Size], tuple[Array, ...]]
    reference: Callable[..., Array]
    run: Mapping[str, Callable[..., Any]]
    work: Callable[[Size], float]
    tolerance: float = 1e-5


def check(name: str, result: Array, reference: Array, tolerance: float) -> None:
    """Compare with the reference: relative to each value, plus a share of the largest (what a float32 sum loses).

    Raises:
        WrongResult: another shape, a nan where the reference has none, or an error above the tolerance.
    """
    result, reference = np.asarray(result), np.asarray(reference, np.float64)
    if result.shape != reference.shape:
        raise WrongResult(f"{name}: shape {result.shape}, the reference has {reference.shape}")
    if not reference.size:
        return
    allowed = np.abs(reference)
    allowed += allowed.max()
    allowed *= tolerance / 2
    error = np.abs(result - reference)
    good = error <= allowed
    if not good.all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error - allowed)))
        place = tuple(int(i) for i in np.unravel_index(worst, reference.shape))
        got, right = result[place], reference[place]
        wrong = int((~good).sum())
        raise WrongResult(f"{name}: {wrong} of {good.size} values wrong, at {place} {got} instead of {right}")


def prepare_expression(work: Expression, setup: Setup) -> Prepared:
    """Inputs, a call for each peer; results are compared with the reference three times, a replay included."""
    size = work.tiny if setup.tiny else work.size
    arrays = work.inputs(np.random.default_rng(7), size)
    reference = work.reference(*(a.astype(np.float64) for a in arrays))
    samplers = {}
    notes: list[str] = []
    for name in setup.peers:
        library = peer(name)
        run = work.run.get(library.column or name)
        if run is None:
            continue
        tensors = [library.tensor(a) for a in arrays]
        call = library.bind(run, tensors)
        for _ in range(3):  # jit: run, capture, replay
            check(name, library.array(call()), reference, work.tolerance)
        samplers[name] = call_sampler(call, setup.sample_s, setup.threads)
        if name == "kernmill":
            count = kernels_of(lambda f=work.run[name], lib=library.lib, given=tensors: f(lib, *given))  # type: ignore[misc]
            notes.append(f"{count} kernel{'s' if count != 1 else ''}")
    return Prepared(samplers, work.work(size), lambda: notes)


def kernels_of(expression: Callable[[], Any]) -> int:
    """Kernels that realizing a new graph launches."""
    from kernmill.runtime import recording

    with recording() as recorded:
        expression().realize()
    return recorded.kernel_count


# --- inputs and references -------------------------------------------------------------------------------------------
def normal(count: int, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """`count` arrays of normal numbers."""
    return tuple(rng.standard_normal(size, np.float32) for _ in range(count))


def uniform(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Numbers from 0 to 1: their sum loses no digits to cancellation."""
    return (rng.random(size, np.float32),)


def with_weights(count: int, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Rows, and `count` vectors as long as a row: the weight and the bias of a norm."""
    return (rng.standard_normal(size, np.float32), *(rng.standard_normal(size[-1:], np.float32) for _ in range(count)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5) * weight + bias  # type: ignore[no-any-return]


def rms_norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight  # type: ignore[no-any-return]


_C = math.sqrt(2 / math.pi)


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(_C * (x + 0.044715 * x * x * x)))


def kernmill_layer_norm(_: Any, x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias


def gelu_chain(tanh: Callable[[Any], Any], x: Any) -> Any:
    """The formula as it stands: eight operations."""
    return 0.5 * x * (1.0 + tanh(_C * (x + 0.044715 * x * x * x)))


# --- the table -------------------------------------------------------------------------------------------------------
def matmul_row(n: int) -> Row:
    goals = () if n < 512 else (Goal("numpy", 1.0),)
    work = Expression(
        (n, n), (9, 9), partial(normal, 2), lambda a, b: a @ b,
        {"kernmill": lambda _, a, b: a @ b, "numpy": lambda _, a, b: a @ b, "torch": lambda _, a, b: a @ b},
        lambda s: 2.0 * s[0] ** 3, 2e-5,
    )  # fmt: skip
    about = f"float32 matrix product, {n} x {n} x {n}"
    return Row(f"matmul_{n}", about, partial(prepare_expression, work), "GFLOP/s", goals=goals)


def moved(passes: int) -> Callable[[Size], float]:
    """Bytes of a float32 tensor read or written `passes` times."""
    return lambda size: 4.0 * passes * math.prod(size)


def row_16m(name: str, about: str, work: Expression, ratio: float) -> Row:
    goals = (Goal("torch", ratio),)
    return Row(name, f"{about}, 4096 x 4096 float32", partial(prepare_expression, work), "GB/s", goals=goals)


_BIG, _TINY = (4096, 4096), (5, 37)


TENSOR_ROWS: list[Row] = [
    *(matmul_row(n) for n in (256, 512, 1024, 2048)),
    row_16m("softmax", "softmax of rows", Expression(_BIG, _TINY, partial(normal, 1), softmax, {
        "kernmill": lambda _, x: x.softmax(-1),
        "numpy": lambda _, x: softmax(x),
        "torch": lambda torch, x: torch.softmax(x, -1),
    }, moved(2)), 3.0),
    row_16m("layer_norm", "layer norm of rows, weight and bias", Expression(
        _BIG, _TINY, partial(with_weights, 2), layer_norm, {
            "kernmill": kernmill_layer_norm,
            "numpy": lambda _, x, w, b: layer_norm(x, w, b),
            "torch": lambda torch, x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1e-5),
        }, moved(2), 2e-5), 3.0),
    row_16m("rms_norm", "RMS norm of rows, weight", Expression(_BIG, _TINY, partial(with_weights, 1), rms_norm, {
        "kernmill": lambda _, x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
        "numpy": lambda _, x, w: rms_norm(x, w),
        "torch": lambda torch, x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6),
    }, moved(2)), 3.0),
    row_16m("gelu_chain", "GELU (tanh form) written out", Expression(_BIG, _TINY, partial(normal, 1), gelu_tanh, {
        "kernmill": lambda _, x: gelu_chain(lambda y: y.tanh(), x),
        "numpy": lambda np_, x: gelu_chain(np_.tanh, x),
        "torch": lambda torch, x: gelu_chain(torch.tanh, x),
    }, moved(2)), 3.0),
    Row("gelu", "GELU (tanh form) by its own function, 4096 x 4096 float32", partial(prepare_expression, Expression(
        _BIG, _TINY, partial(normal, 1), gelu_tanh, {
            "kernmill": lambda _, x: x.gelu(approximate="tanh"),
            "torch": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        }, moved(2))), "GB/s"),
    row_16m("argmax", "argmax of rows", Expression(
        _BIG, _TINY, partial(normal, 1), lambda x: x.argmax(-1), {
            "kernmill": lambda _, x: x.argmax(-1),
            "numpy": lambda _, x: x.argmax(-1),
            "torch": lambda torch, x: torch.argmax(x, -1),
        }, moved(1), 0.0), 3.0),
    row_16m("sum", "sum of all", Expression(_BIG, _TINY, uniform, lambda x: x.sum(), {
        "kernmill": lambda _, x: x.sum(),
        "numpy": lambda _, x: x.sum(),
        "torch": lambda torch, x: torch.sum(x),
    }, moved(1)), 1.0),
]  # fmt: skip
