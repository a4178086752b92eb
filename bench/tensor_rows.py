"""Benchmarks of row norms, elementwise chains, movement, reductions and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .expression import Expression, Form, moved, normal, prepare_expression
from .row import Goal, Row

__all__ = ["TENSOR_ROWS"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]
_BIG, _TINY = (4096, 4096), (5, 37)


# --- inputs and references -------------------------------------------------------------------------------------------
def uniform(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Numbers from 0 to 1: their sum loses no digits to cancellation."""
    return (rng.random(size, np.float32),)


def with_weights(count: int, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Rows, and `count` vectors as long as a row: the weight and the bias of a norm."""
    return (rng.standard_normal(size, np.float32), *(rng.standard_normal(size[-1:], np.float32) for _ in range(count)))


def distinct(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Whole numbers in disorder, no two alike in a row."""
    return (rng.permuted(np.broadcast_to(np.arange(size[-1], dtype=np.float32), size), axis=-1),)


def table_and_index(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """A table of (entries, width) and `picked` places in it, for a size (entries, width, picked)."""
    entries, width, picked = size
    return rng.standard_normal((entries, width), np.float32), rng.integers(0, entries, picked)


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


def gelu_chain(tanh: Callable[[Any], Any], x: Any) -> Any:
    """The formula as it stands: eight operations."""
    return 0.5 * x * (1.0 + tanh(_C * (x + 0.044715 * x * x * x)))


# --- the peers' forms ------------------------------------------------------------------------------------------------
def kernmill_layer_norm(_: Any, x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias


def jax_layer_norm(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(jax.numpy.square(centered).mean(-1, keepdims=True) + 1e-5) * weight + bias


def rms_written(rsqrt: Callable[[Any], Any], x: Any, weight: Any) -> Any:
    return x * rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def assigned(_: Any, a: Any, b: Any, out: Any) -> Any:
    return out.assign(a + b)


# --- the table -------------------------------------------------------------------------------------------------------
def row_16m(name: str, about: str, work: Expression, *goals: Goal) -> Row:
    return Row(name, f"{about}, 4096 x 4096 float32", partial(prepare_expression, work), "GB/s", goals=goals)


def on_rows(reference: Callable[..., Array], run: Any, *, inputs: Any = None, passes: int = 2, tolerance: float = 1e-5,
            ceiling: str = "copy", size: Size = _BIG) -> Expression:  # fmt: skip
    """Work on a matrix of 64 MB, at best as fast as reading it (`read`), or reading and writing it (`copy`)."""
    return Expression(size, _TINY, inputs or partial(normal, 1), reference, run, moved(passes), tolerance, ceiling)


ROW_NORMS = [
    row_16m("softmax", "softmax of rows", on_rows(softmax, {
        "kernmill": lambda _, x: x.softmax(-1),
        "numpy": lambda _, x: softmax(x),
        "torch": lambda torch, x: torch.softmax(x, -1),
        "jax": lambda jax, x: jax.nn.softmax(x, -1),
        "onnxruntime": lambda g, x: g.Softmax(x, axis=-1),
        "tinygrad": lambda _, x: x.softmax(-1),
    }), Goal("torch", 3.4), Goal("onnxruntime", 1.1)),
    row_16m("layer_norm", "layer norm of rows, weight and bias", on_rows(layer_norm, {
        "kernmill": kernmill_layer_norm,
        "numpy": lambda _, x, w, b: layer_norm(x, w, b),
        "torch": lambda torch, x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1e-5),
        "jax": jax_layer_norm,
        "onnxruntime": lambda g, x, w, b: g.LayerNormalization(x, w, b, axis=-1, epsilon=1e-5),
        "tinygrad": lambda _, x, w, b: x.layernorm(-1, 1e-5) * w + b,
    }, inputs=partial(with_weights, 2), tolerance=2e-5), Goal("torch", 4.5)),
    row_16m("rms_norm", "RMS norm of rows, weight", on_rows(rms_norm, {
        "kernmill": lambda _, x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
        "numpy": lambda _, x, w: rms_norm(x, w),
        "torch": lambda torch, x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6),
        "jax": lambda jax, x, w: rms_written(jax.lax.rsqrt, x, w),
        "onnxruntime": lambda g, x, w: g.RMSNormalization(x, w, axis=-1, epsilon=1e-6),
        "tinygrad": lambda _, x, w: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w,
    }, inputs=partial(with_weights, 1)), Goal("torch", 10.0)),
]  # fmt: skip
ELEMENTWISE = [
    row_16m("gelu_chain", "GELU (tanh form) written out", on_rows(gelu_tanh, {
        "kernmill": lambda _, x: gelu_chain(lambda y: y.tanh(), x),
        "numpy": lambda np_, x: gelu_chain(np_.tanh, x),
        "torch": lambda torch, x: gelu_chain(torch.tanh, x),
        "jax": lambda jax, x: gelu_chain(jax.numpy.tanh, x),
        "tinygrad": lambda _, x: gelu_chain(lambda y: y.tanh(), x),
    }), Goal("torch", 20.0)),
    row_16m("gelu", "GELU (tanh form) by its own function", on_rows(gelu_tanh, {
        "kernmill": lambda _, x: x.gelu(approximate="tanh"),
        "torch": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        "jax": lambda jax, x: jax.nn.gelu(x, approximate=True),
        "onnxruntime": lambda g, x: g.Gelu(x, approximate="tanh"),
        "tinygrad": lambda _, x: x.gelu(),
    })),
    row_16m("add_reused", "sum of two into a buffer that is there (`out=`; jax, onnxruntime: a new one)", on_rows(
        lambda a, b: a + b, {
            "kernmill": (Form(assigned, lambda lib, a, b: (a, b, (a * 0).contiguous().realize())),),
            "numpy": (Form(lambda np_, a, b, out: np_.add(a, b, out=out), lambda np_, a, b: (a, b, a * 0)),),
            "torch": (Form(lambda torch, a, b, out: torch.add(a, b, out=out), lambda torch, a, b: (a, b, a * 0)),),
            "torch.compile": (Form(lambda torch, a, b, out: out.copy_(a + b), lambda torch, a, b: (a, b, a * 0)),),
            "jax": lambda _, a, b: a + b,
            "onnxruntime": lambda g, a, b: g.Add(a, b),
            "tinygrad": (Form(assigned, lambda lib, a, b: (a, b, lib.Tensor.zeros(*a.shape, device="CPU").contiguous()
                                                           .realize())),),
        }, inputs=partial(normal, 2), passes=3), Goal("torch", 1.4)),
]  # fmt: skip
MOVEMENT = [
    row_16m("transpose", "transpose into new memory", on_rows(lambda x: x.T, {
        "kernmill": lambda _, x: x.transpose(0, 1).contiguous(),
        "numpy": lambda np_, x: np_.ascontiguousarray(x.T),
        "torch": lambda torch, x: x.t().contiguous(),
        "jax": lambda jax, x: x.T,
        "onnxruntime": lambda g, x: g.Transpose(x, perm=[1, 0]),
        "tinygrad": lambda _, x: x.transpose(0, 1).contiguous(),
    }, tolerance=0.0), Goal("torch", 3.0)),
    Row("gather", "8192 rows of a table of 32768 x 768 float32", partial(prepare_expression, Expression(
        (32768, 768, 8192), (40, 7, 11), table_and_index, lambda table, index: table[index], {
            "kernmill": lambda _, table, index: table[index],
            "numpy": (lambda _, table, index: table[index], lambda np_, table, index: np_.take(table, index, 0)),
            "torch": (lambda torch, table, index: torch.nn.functional.embedding(index, table),
                      lambda torch, table, index: table.index_select(0, index)),
            "jax": lambda _, table, index: table[index],
            "onnxruntime": lambda g, table, index: g.Gather(table, index, axis=0),
            "tinygrad": lambda _, table, index: table[index],
        }, lambda size: 8.0 * size[1] * size[2], 0.0, "copy")), "GB/s", goals=(Goal("torch", 1.5),)),
]  # fmt: skip
REDUCTIONS = [
    row_16m("argmax", "argmax of rows", on_rows(lambda x: x.argmax(-1), {
        "kernmill": lambda _, x: x.argmax(-1),
        "numpy": lambda _, x: x.argmax(-1),
        "torch": lambda torch, x: torch.argmax(x, -1),
        "jax": lambda jax, x: x.argmax(-1),
        "onnxruntime": lambda g, x: g.ArgMax(x, axis=-1, keepdims=0),
        "tinygrad": lambda _, x: x.argmax(-1),
    }, passes=1, tolerance=0.0, ceiling="read"), Goal("torch", 10.0)),
    row_16m("sum", "sum of all", on_rows(lambda x: x.sum(), {
        "kernmill": lambda _, x: x.sum(),
        "numpy": lambda _, x: x.sum(),
        "torch": lambda torch, x: torch.sum(x),
        "jax": lambda jax, x: x.sum(),
        "onnxruntime": lambda g, x: g.ReduceSum(x, keepdims=0),
        "tinygrad": lambda _, x: x.sum(),
    }, inputs=uniform, passes=1, ceiling="read")),
]  # fmt: skip
ORDERS = [
    row_16m("cumsum", "running sums of rows", on_rows(lambda x: x.cumsum(-1), {
        "kernmill": lambda _, x: x.cumsum(-1),
        "numpy": lambda _, x: x.cumsum(-1),
        "torch": lambda torch, x: torch.cumsum(x, -1),
        "jax": lambda jax, x: x.cumsum(-1),
        "onnxruntime": lambda g, x: g.CumSum(x, g.constant(np.array(1))),
        "tinygrad": lambda _, x: x.cumsum(-1),
    }, inputs=uniform, tolerance=1e-4)),
    Row("sort", "rows of 1024 in order, 256 of them, float32", partial(prepare_expression, Expression(
        (256, 1024), (3, 16), distinct, lambda x: np.sort(x, -1), {
            "kernmill": lambda _, x: x.sort(-1)[0],
            "numpy": lambda np_, x: np_.sort(x, -1),
            "torch": lambda torch, x: torch.sort(x, -1).values,
            "jax": lambda jax, x: jax.numpy.sort(x, -1),
            "onnxruntime": lambda g, x: g.TopK(x, g.Shape(x, start=1), axis=-1, largest=0, outputs=2)[0],
            "tinygrad": lambda _, x: x.sort(-1)[0],
        }, moved(2), 0.0)), "GB/s"),
    Row("topk", "the 8 largest of rows of 4096, 64 of them, float32", partial(prepare_expression, Expression(
        (64, 4096), (3, 16), distinct, lambda x: -np.sort(-x, -1)[:, :8], {
            "kernmill": lambda _, x: x.topk(8, -1)[0],
            "numpy": lambda np_, x: -np_.sort(np_.partition(-x, 7, -1)[:, :8], -1),
            "torch": lambda torch, x: torch.topk(x, 8, -1).values,
            "jax": lambda jax, x: jax.lax.top_k(x, 8)[0],
            "onnxruntime": lambda g, x: g.TopK(x, g.constant(np.array([8])), axis=-1, outputs=2)[0],
            "tinygrad": lambda _, x: x.topk(8, -1)[0],
        }, moved(1), 0.0)), "GB/s"),
]  # fmt: skip
TENSOR_ROWS: list[Row] = [*ROW_NORMS, *ELEMENTWISE, *MOVEMENT, *REDUCTIONS, *ORDERS]
