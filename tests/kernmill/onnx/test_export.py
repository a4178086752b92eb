"""Functions exported to ONNX: the same results from onnxruntime, and from kernmill's own reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed (it comes with the extra `dev`)")

from kernmill import Context, DTypeError, FormatError, KernmillError, Tensor, nn, where
from kernmill.onnx import export, from_proto, load


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    with Context(DEVICE="LLVM"):
        yield


def network() -> Any:
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), Tensor.relu, lambda x: x.max_pool2d(2),
        lambda x: x.flatten(1), nn.Linear(16, 5), lambda x: x.softmax(1),
    )  # fmt: skip
    return body.eval()


def attention(x: Tensor) -> Tensor:
    return x.scaled_dot_product_attention(x, x, is_causal=True).gelu()


INDEX = Tensor([2, 0])
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "products": (lambda x, y: ((x @ y).tanh(), (y.T @ x.T).sum(0)), ((3, 4), (4, 5))),
    "elementwise": (lambda x: (x.exp() + x.abs().sqrt() * x.sin() - x.erf()).exp2().log2() / 3 % 0.7, ((2, 3),)),
    "rounding": (lambda x: (x * 5).trunc() + (x * 3).floor() + x.ceil() + (x * 2).round() + (x // 0.3), ((4, 5),)),
    "comparisons": (lambda x: (where((x > 0) | (x < -1), x, 0), (x > 0).any(1), (x != x).all(), x.eq(0)), ((4, 5),)),
    "integers": (lambda x: ((x * 9).int() // 2, (x * 9).int() % 4, (x * 9).int() & 3, (x * 9).int().sum(0)), ((3, 3),)),
    "movement": (lambda x: (x.flip(0), x[::2, 1:], x.pad(((1, 2), (0, 1))), x.T.reshape(2, 6), x.expand(2, 3, 4),
                            x.cat(x, dim=1), x[INDEX], (x > 0).pad(((1, 0), (0, 0)))), ((3, 4),)),
    "reductions": (lambda x: (x.sum(), x.mean(1), x.max(0), x.min(1, keepdim=True), x.var(1), x.prod(0), x.logsumexp(1),
                              x.cumsum(0)), ((3, 4),)),
    "no axes": (lambda x: x * 2 + 1, ((),)),
    "a network": (network(), ((2, 3, 8, 8),)),
    "attention": (attention, ((2, 3, 5, 4),)),
}  # fmt: skip


def as_list(found: Any) -> list[Any]:
    return [x.numpy() if isinstance(x, Tensor) else x for x in (found if isinstance(found, (list, tuple)) else [found])]


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(name: str, tmp_path: Path) -> None:
    function, shapes = CASES[name]
    draw = np.random.default_rng(5)
    inputs = [draw.standard_normal(s).astype(np.float32) for s in shapes]
    wanted = as_list(function(*map(Tensor, inputs)))
    other = [draw.standard_normal(s).astype(np.float32) for s in shapes]
    model = export(function, *map(Tensor, other), path=tmp_path / "m.onnx")
    for mine, want in zip(as_list(load(tmp_path / "m.onnx")(*inputs)), wanted, strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-5)
        assert mine.dtype == want.dtype
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {f"input{i}": x for i, x in enumerate(inputs)})
    for theirs, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(theirs, want, rtol=1e-4, atol=1e-5)


def test_names_of_inputs() -> None:
    model = export(lambda a, b: a + b, Tensor.ones(2), Tensor.ones(2), names=["a", "b"])
    assert from_proto(model)(a=np.ones(2, np.float32), b=np.zeros(2, np.float32)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: export(lambda x: x.sort(0)[0], Tensor.ones(2)), KernmillError, "export: ONNX has no operators"),
        (lambda: export(lambda x: x, np.ones(2)), DTypeError, "an input is a ndarray"),  # type: ignore[arg-type]
        (lambda: export(lambda x: 3, Tensor.ones(2)), DTypeError, "export: a result is a int"),
        (
            lambda: export(lambda x: x if x.sum() > 0 else -x, Tensor.ones(2)),
            KernmillError,
            "export: the function reads",
        ),
        (lambda: export(lambda x: x.bfloat16(), Tensor.ones(2)), DTypeError, "bfloat16 is not supported"),
        (lambda: export(lambda x: x, Tensor.ones(2), path="missing/m.onnx"), FormatError, "cannot be written"),
    ],
)
def test_mistakes(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
