"""One training step of a model by each peer: forward, cross entropy, gradients, Adam; and a forward pass alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from .models import BETAS, EPS, LR, Model
from .peers import captured

__all__ = ["FORWARDS", "STEPS", "Step"]

Step = Callable[[], Any]


def kernmill_step(model: Model, batch: int) -> Step:
    """The step as a call that returns the loss, captured."""
    kernmill = importlib.import_module("kernmill")
    start, images, labels = model.problem(batch)
    params = [kernmill.Tensor(p, requires_grad=True) for p in start]
    optimizer = importlib.import_module("kernmill.nn").optim.Adam(params, LR, BETAS, EPS)
    x, y = kernmill.Tensor(images), kernmill.Tensor(labels)
    forward = model.forward["kernmill"]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = forward(kernmill, params, x).cross_entropy(y)
        loss.backward()
        optimizer.step(loss)
        return loss

    return partial(captured(step), x, y)


def kernmill_forward(model: Model, batch: int) -> Step:
    kernmill = importlib.import_module("kernmill")
    start, images, _ = model.problem(batch)
    params, x = [kernmill.Tensor(p) for p in start], kernmill.Tensor(images)
    forward = model.forward["kernmill"]
    return partial(captured(lambda x: forward(kernmill, params, x)), x)


def torch_step(model: Model, batch: int, is_compiled: bool = False) -> Step:
    """Eager, with torch's fused Adam (the fastest of its three); or forward and gradients compiled."""
    torch = importlib.import_module("torch")
    start, images, labels = model.problem(batch)
    params = [torch.from_numpy(p.copy()).requires_grad_() for p in start]
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(params, LR, BETAS, EPS, fused=True)
    forward = model.forward["torch"]

    def loss_of(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(forward(torch, params, x), y)

    if is_compiled:
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def torch_forward(model: Model, batch: int) -> Step:
    torch = importlib.import_module("torch")
    start, images, _ = model.problem(batch)
    params, x = [torch.from_numpy(p.copy()) for p in start], torch.from_numpy(images)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def call() -> Any:
        return model.forward["torch"](torch, params, x)

    return call  # type: ignore[no-any-return]


def jax_step(model: Model, batch: int) -> Step:
    """One compiled function from parameters and moments to new ones; what it was given is given up."""
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    start, images, labels = model.problem(batch)
    params = [jnp.array(p) for p in start]
    x, y = jnp.array(images), jnp.array(labels.astype("int32"))
    beta1, beta2 = BETAS

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        log_p = jax.nn.log_softmax(model.forward["jax"](jax, params, x))
        return -log_p[jnp.arange(y.shape[0]), y].mean()

    def update(state: Any, x: Any, y: Any) -> Any:
        params, means, squares, count = state
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        count = count + 1
        means = [m * beta1 + g * (1 - beta1) for m, g in zip(means, grads, strict=True)]
        squares = [v * beta2 + g * g * (1 - beta2) for v, g in zip(squares, grads, strict=True)]
        by_mean, by_square = 1 - beta1**count, 1 - beta2**count
        params = [p - LR * (m / by_mean) / (jnp.sqrt(v / by_square) + EPS)
                  for p, m, v in zip(params, means, squares, strict=True)]  # fmt: skip
        return (params, means, squares, count), loss

    compiled = jax.jit(update, donate_argnums=0)
    state = [(params, [jnp.zeros_like(p) for p in params], [jnp.zeros_like(p) for p in params], jnp.float32(0))]

    def step() -> Any:
        state[0], loss = compiled(state[0], x, y)
        jax.block_until_ready(state[0])
        return loss.block_until_ready()

    return step


def tinygrad_step(model: Model, batch: int) -> Step:
    """TinyJit of the whole step."""
    tinygrad = importlib.import_module("tinygrad")
    tensor = tinygrad.Tensor
    start, images, labels = model.problem(batch)
    params = [tensor(p, device="CPU").realize() for p in start]
    x, y = tensor(images, device="CPU").realize(), tensor(labels.astype("int32"), device="CPU").realize()
    optimizer = importlib.import_module("tinygrad.nn.optim").Adam(params, LR, *BETAS, EPS)
    device = tinygrad.Device["CPU"]

    def update() -> Any:
        optimizer.zero_grad()
        loss = model.forward["tinygrad"](tinygrad, params, x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    compiled = tinygrad.TinyJit(update)

    def step() -> Any:
        with tinygrad.Context(TRAINING=1):
            loss = compiled()
        device.synchronize()
        return loss.numpy()

    return step


STEPS: dict[str, Callable[[Model, int], Step]] = {
    "kernmill": kernmill_step, "torch": torch_step, "torch.compile": partial(torch_step, is_compiled=True),
    "jax": jax_step, "tinygrad": tinygrad_step,
}  # fmt: skip
FORWARDS: dict[str, Callable[[Model, int], Step]] = {"kernmill": kernmill_forward, "torch": torch_forward}
