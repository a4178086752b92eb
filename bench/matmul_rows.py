"""Rows: matrix products in float32, bfloat16 and int8, square and with few rows."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .expression import Expression, Form, contiguous_bf16, prepare_expression
from .row import Goal, Row

__all__ = ["MATMUL_ROWS"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]


def flops(size: Size) -> float:
    """Of a product of size (rows, inner, columns)."""
    return 2.0 * math.prod(size)


def factors(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Two matrices of normal numbers."""
    rows, inner, columns = size
    return rng.standard_normal((rows, inner), np.float32), rng.standard_normal((inner, columns), np.float32)


def bf16_factors(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """The same, rounded to bfloat16, so that the reference multiplies what the peers do."""
    return tuple(contiguous_bf16(one) for one in factors(rng, size))


def int8_factors(rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    rows, inner, columns = size
    return tuple(rng.integers(-127, 128, shape).astype(np.int8) for shape in ((rows, inner), (inner, columns)))


def product(_: Any, a: Any, b: Any) -> Any:
    return a @ b


def linear(torch: Any, x: Any, weight: Any) -> Any:
    return torch.nn.functional.linear(x, weight)


TRANSPOSED = Form(linear, lambda _, x, w: (x, w.t().contiguous()))  # weights as torch keeps them: (out, in)
PRODUCTS: dict[str, Any] = {
    "kernmill": product, "numpy": product, "torch": (product, TRANSPOSED), "jax": product,
    "onnxruntime": lambda g, a, b: g.MatMul(a, b), "tinygrad": product,
}  # fmt: skip


def square(n: int) -> Row:
    """numpy's and torch's product of two matrices as they come: nothing is packed ahead."""
    run = {**PRODUCTS, "torch": product}
    if n > 1024:
        del run["tinygrad"]  # 5 s a call
    work = Expression((n, n, n), (9, 9, 9), factors, product_of, run, flops, 2e-5, "fma")
    goals = (Goal("numpy", 1.05), Goal("torch", 1.0), Goal("ceiling", 0.8))
    return Row(f"matmul_{n}", f"float32 matrix product, {n} x {n} x {n}", partial(prepare_expression, work), "GFLOP/s",
               goals=goals)  # fmt: skip


def product_of(a: Array, b: Array) -> Array:
    result: Array = np.matmul(a, b)
    return result


def weight_bytes(size: Size) -> float:
    """Of the float32 weight, which is read once."""
    return 4.0 * size[1] * size[2]


def few_rows(rows: int, goal: Goal) -> Row:
    """Rows times a weight, which is the same in each call."""
    is_read = goal.peer == "ceiling"
    work = Expression((rows, 4096, 4096), (rows, 37, 19), factors, product_of, PRODUCTS,
                      weight_bytes if is_read else flops, 5e-5, "read" if is_read else "fma", constants=1)  # fmt: skip
    about = f"{rows} row{'s' if rows > 1 else ''} by a float32 weight of 4096 x 4096"
    rate = "GB/s" if is_read else "GFLOP/s"
    return Row(f"rows_{rows}", about, partial(prepare_expression, work), rate, goals=(goal,))


def bf16(n: int) -> Row:
    run = {name: PRODUCTS[name] for name in ("kernmill", "torch", "jax")}
    run["torch"] = (*PRODUCTS["torch"], lambda _, a, b: (a.float() @ b.float()).bfloat16())  # faster without AMX
    work = Expression((n, n, n), (9, 9, 9), bf16_factors, product_of, run, flops, 1.6e-2, "fma", 1, "bfloat16")
    return Row(f"bf16_{n}", f"bfloat16 matrix product, the second factor a weight, {n} x {n} x {n}; ceiling: float32",
               partial(prepare_expression, work), "GFLOP/s", goals=(Goal("torch", 1.0),))  # fmt: skip


def int8(n: int) -> Row:
    run: dict[str, Any] = {
        "kernmill": lambda lib, a, b: a.cast(lib.dtypes.int32) @ b.cast(lib.dtypes.int32),
        "numpy": lambda np_, a, b: a.astype(np_.int32) @ b.astype(np_.int32),
        "torch": lambda torch, a, b: torch._int_mm(a, b),
        "jax": lambda jax, a, b: jax.lax.dot(a, b, preferred_element_type=jax.numpy.int32),
        "onnxruntime": lambda g, a, b: g.MatMulInteger(a, b),
    }
    if n > 512:
        del run["numpy"]  # one product at a time
    work = Expression((n, n, n), (32, 32, 32), int8_factors, lambda a, b: a.astype(float) @ b.astype(float), run,
                      flops, 0.0, "vnni", 1)  # fmt: skip
    return Row(f"int8_{n}", f"int8 matrix product to int32, the second factor a weight, {n} x {n} x {n}; ceiling: VNNI",
               partial(prepare_expression, work), "GOP/s",
               goals=(Goal("torch", 1.5), Goal("jax", 1.1), Goal("ceiling", 0.8)))  # fmt: skip


MATMUL_ROWS: list[Row] = [
    *(square(n) for n in (256, 512, 1024, 2048)),
    few_rows(8, Goal("torch", 2.0)), few_rows(32, Goal("torch", 1.4)), few_rows(1, Goal("ceiling", 0.95)),
    *(bf16(n) for n in (512, 1024, 2048)),
    *(int8(n) for n in (512, 1024, 2048)),
]  # fmt: skip
