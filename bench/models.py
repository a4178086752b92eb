"""The two networks that are trained: start values, a forward pass in each peer's words, and the gradients in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BETAS", "CONVNET", "EPS", "LR", "MLP", "MODELS", "Model", "reference_losses"]

Array = np.ndarray[Any, Any]
LR, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Model:
    """A network that gives 10 logits for each image. `forward[peer](library, params, images)`."""

    name: str
    about: str
    shapes: tuple[tuple[tuple[int, ...], int], ...]  # of each parameter, and its fan-in
    image: tuple[int, ...]
    forward: dict[str, Callable[[Any, Sequence[Any], Any], Any]]
    gradients: Callable[[Sequence[Array], Array, Array], tuple[float, list[Array]]]  # the loss too, in NumPy

    def problem(self, batch: int) -> tuple[list[Array], Array, Array]:
        """Start values of the parameters; images; labels."""
        rng = np.random.default_rng(7)
        params = [(rng.uniform(-1, 1, shape) / fan_in**0.5).astype(np.float32) for shape, fan_in in self.shapes]
        return params, rng.random((batch, *self.image), np.float32), rng.integers(0, 10, batch)


# --- forward ---------------------------------------------------------------------------------------------------------
def methods_convnet(_: Any, params: Sequence[Any], x: Any) -> Any:
    """kernmill and tinygrad."""
    w1, b1, w2, b2, w3, b3 = params
    hidden = x.conv2d(w1, b1).relu().max_pool2d(2)
    hidden = hidden.conv2d(w2, b2).relu().max_pool2d(2)
    return hidden.flatten(1).matmul(w3.transpose(0, 1)) + b3


def torch_convnet(torch: Any, params: Sequence[Any], x: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = params
    functional = torch.nn.functional
    hidden = functional.max_pool2d(functional.relu(functional.conv2d(x, w1, b1)), 2)
    hidden = functional.max_pool2d(functional.relu(functional.conv2d(hidden, w2, b2)), 2)
    return functional.linear(hidden.flatten(1), w3, b3)


def jax_convnet(jax: Any, params: Sequence[Any], x: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = params
    for weight, bias in ((w1, b1), (w2, b2)):
        x = jax.lax.conv_general_dilated(x, weight, (1, 1), "VALID") + bias[:, None, None]
        blocks = jax.nn.relu(x).reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2)
        x = blocks.max((3, 5))
    return x.reshape(x.shape[0], -1) @ w3.T + b3


def methods_mlp(_: Any, params: Sequence[Any], x: Any) -> Any:
    """kernmill and tinygrad."""
    w1, b1, w2, b2, w3, b3 = params
    hidden = (x.matmul(w1.transpose(0, 1)) + b1).relu()
    hidden = (hidden.matmul(w2.transpose(0, 1)) + b2).relu()
    return hidden.matmul(w3.transpose(0, 1)) + b3


def torch_mlp(torch: Any, params: Sequence[Any], x: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = params
    linear, relu = torch.nn.functional.linear, torch.nn.functional.relu
    return linear(relu(linear(relu(linear(x, w1, b1)), w2, b2)), w3, b3)


def jax_mlp(jax: Any, params: Sequence[Any], x: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = params
    return jax.nn.relu(jax.nn.relu(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3


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


def of_logits(logits: Array, y: Array) -> tuple[float, Array]:
    """Mean cross entropy, and its gradient."""
    logits = logits - logits.max(1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -float(log_p[np.arange(len(y)), y].mean()), (np.exp(log_p) - np.eye(10)[y]) / len(y)


def convnet_gradients(params: Sequence[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    w1, b1, w2, b2, w3, b3 = params
    h1, from1 = relu_pool(conv(x, w1, b1))
    h2, from2 = relu_pool(conv(h1, w2, b2))
    flat = h2.reshape(len(x), -1)
    loss, grad = of_logits(flat @ w3.T + b3, y)
    of_h2 = spread_back((grad @ w3).reshape(h2.shape), from2)
    of_h1, gw2, gb2 = conv_grads(h1, w2, of_h2)
    _, gw1, gb1 = conv_grads(x, w1, spread_back(of_h1, from1))
    return loss, [gw1, gb1, gw2, gb2, grad.T @ flat, grad.sum(0)]


def mlp_gradients(params: Sequence[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    w1, b1, w2, b2, w3, b3 = params
    h1 = np.maximum(x @ w1.T + b1, 0)
    h2 = np.maximum(h1 @ w2.T + b2, 0)
    loss, g3 = of_logits(h2 @ w3.T + b3, y)
    g2 = g3 @ w3 * (h2 > 0)
    g1 = g2 @ w2 * (h1 > 0)
    return loss, [g1.T @ x, g1.sum(0), g2.T @ h1, g2.sum(0), g3.T @ h2, g3.sum(0)]


def reference_losses(model: Model, batch: int, steps: int) -> list[float]:
    """The loss before each of the first steps of Adam, in float64."""
    start, images, labels = model.problem(batch)
    params = [p.astype(np.float64) for p in start]
    means, squares = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    losses = []
    (beta1, beta2) = BETAS
    for t in range(1, steps + 1):
        loss, grads = model.gradients(params, images.astype(np.float64), labels)
        losses.append(loss)
        for p, m, v, g in zip(params, means, squares, grads, strict=True):
            m[...] = m * beta1 + g * (1 - beta1)
            v[...] = v * beta2 + g * g * (1 - beta2)
            p -= LR * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + EPS)
    return losses


# --- the models ------------------------------------------------------------------------------------------------------
CONVNET = Model(
    "convnet", "conv5x5(1-16), relu, pool, conv3x3(16-32), relu, pool, linear",
    (((16, 1, 5, 5), 25), ((16,), 25), ((32, 16, 3, 3), 144), ((32,), 144), ((10, 800), 800), ((10,), 800)),
    (1, 28, 28),
    {"kernmill": methods_convnet, "torch": torch_convnet, "jax": jax_convnet, "tinygrad": methods_convnet},
    convnet_gradients,
)  # fmt: skip
MLP = Model(
    "mlp", "linear(784-512), relu, linear(512-512), relu, linear(512-10)",
    (((512, 784), 784), ((512,), 784), ((512, 512), 512), ((512,), 512), ((10, 512), 512), ((10,), 512)), (784,),
    {"kernmill": methods_mlp, "torch": torch_mlp, "jax": jax_mlp, "tinygrad": methods_mlp},
    mlp_gradients,
)  # fmt: skip
MODELS = {model.name: model for model in (CONVNET, MLP)}
