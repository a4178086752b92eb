"""Training: the forward pass of an architecture on parameters, without a cache; the result is a GGUF file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernmill import Progress, SettingError, Tensor, jit, nn

from .. import dist
from ..quant import save
from .arch import ARCHITECTURES, Cache, Config, Positions
from .model_file import config_of

__all__ = ["Learner", "llama_metadata", "shapes_of"]

REPORTS = 12  # lines that `fit` gives
STEPS_OF_ONE_RATE = 10  # steps with one learning rate
Report = Callable[[str], None]


def llama_metadata(width: int, layers: int, context: int, heads: int = 4) -> dict[str, Any]:
    """Return metadata with the sizes of a small llama; two query heads share a key head."""
    sizes = {
        "context_length": context, "embedding_length": width, "block_count": layers, "feed_forward_length": 3 * width,
        "attention.head_count": heads, "attention.head_count_kv": max(1, heads // 2),
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": width // heads,
    }  # fmt: skip
    return {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in sizes.items()}


def shapes_of(config: Config, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of these sizes must have, under its name in a GGUF file."""
    kind = ARCHITECTURES[config.name]
    layer = {name: shape for name, shape in kind.shapes(config).items() if name in kind.needed_names()}
    for joint, parts in kind.fused:
        if joint in parts:  # files of this architecture always have these matrices merged
            rows = sum(layer.pop(f"{part}.weight")[0] for part in parts)
            layer[f"{joint}.weight"] = (rows, config.width)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, config.width)}
    if kind.output_norm:
        shapes[f"{kind.output_norm}.weight"] = (config.width,)
    shapes |= kind.whole_shapes(config)
    return shapes | {f"blk.{n}.{name}": shape for n in range(config.layers) for name, shape in layer.items()}


class Learner:
    """A language model whose weights are parameters: `loss` of batches of tokens, `save` as a file for `run`.

    `metadata` has the sizes as in a GGUF file, `length` is the number of tokens per sample. The embedding is tied to
    the output. Weights start small and random, norms as ones.

    Raises:
        FormatError: an unknown architecture, or invalid sizes.
        SettingError: a seed below 0.
    """

    def __init__(self, metadata: Mapping[str, Any], vocabulary: int, length: int, seed: int = 1) -> None:
        if seed < 0:
            raise SettingError(f"Learner: seed={seed}: must be an integer >= 0.")
        name = str(metadata.get("general.architecture"))
        if name in ARCHITECTURES and ARCHITECTURES[name].mixes == "always":
            raise SettingError(
                f"Learner: {name} models have experts, which are not trained here. Choose an architecture without "
                "experts, such as llama."
            )
        if name in ARCHITECTURES and ARCHITECTURES[name].is_encoder:
            raise SettingError(
                f"Learner: {name} models are encoders, which predict no text. Choose an architecture such as llama."
            )
        if name in ARCHITECTURES and ARCHITECTURES[name].has_states:
            raise SettingError(
                f"Learner: {name} models have recurrent layers, which are not trained here. Choose an architecture "
                "such as llama."
            )
        if name in ARCHITECTURES and ARCHITECTURES[name].has_streams:
            raise SettingError(
                f"Learner: {name} models have several streams, which are not trained here. Choose an architecture such "
                "as llama."
            )
        self.metadata, self.length = dict(metadata), length
        config, chance = config_of(metadata), np.random.default_rng(seed)
        self.weights: dict[str, Tensor] = {}
        for name, shape in shapes_of(config, vocabulary).items():
            spread = 0.02 if name == "token_embd.weight" else 0.7 * shape[-1] ** -0.5
            start = np.ones(shape) if len(shape) == 1 else chance.standard_normal(shape) * spread
            self.weights[name] = Tensor(start.astype(np.float32), requires_grad=True)
        self.architecture = ARCHITECTURES[config.name](config, self.weights.get, length)

    def parameters(self) -> list[Tensor]:
        """Return the parameters for an optimizer."""
        return list(self.weights.values())

    def logits(self, tokens: Tensor) -> Tensor:
        """Shapes: (texts, length) -> (texts, length, vocabulary)."""
        every = Positions([0], self.length)  # the same for all texts
        return self.architecture.logits(self.architecture.forward(tokens, every, Cache.none()))

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean cross entropy, in nats per token. Shapes: (texts, length + 1) -> ()."""
        result: Tensor = self.logits(tokens[:, :-1]).flatten(0, 1).cross_entropy(tokens[:, 1:].flatten())
        return result

    def captured_step(self, optimizer: nn.optim.Optimizer) -> Callable[[Tensor], Tensor]:
        """A captured step of training: a function of tokens that returns their loss, before the step.

        Shapes: (texts, length + 1) -> ().
        """

        @jit
        def step(tokens: Tensor) -> Tensor:
            loss = self.loss(tokens)
            loss.backward()
            optimizer.step(loss)
            optimizer.zero_grad()
            return loss.detach()

        return step

    def fit(self, texts: Sequence[Sequence[int]], steps: int, *, batch: int = 16, rate: float = 3e-3, seed: int = 1,
            report: Report = print) -> float:  # fmt: skip
        """Train on random batches of texts, by AdamW with a rate that falls to a tenth; return the last loss.

        A text that is too long is truncated; a short one is padded with its last token. Ranks of one job
        (kernmill.dist) train one model, each on its part of the texts.

        Raises:
            SettingError: no texts, or one without tokens.
        """
        if not texts or not all(texts):
            raise SettingError("fit: no texts, or a text without tokens. Give at least one, with its begin token.")
        size = self.length + 1
        data = np.array([[*ids[:size], *[ids[-1]] * (size - len(ids))] for ids in texts], np.int32)
        chance = np.random.default_rng(seed)
        optimizer = nn.optim.AdamW(self.parameters(), lr=rate)
        data = dist.data_parallel(self.parameters(), optimizer, data[: len(data) // dist.size() * dist.size()])
        step = self.captured_step(optimizer)
        start, value = time.perf_counter(), math.nan
        with Progress("training", steps) as bar:
            for n in range(1, steps + 1):
                if n % STEPS_OF_ONE_RATE == 0:
                    optimizer.lr = rate * (0.55 + 0.45 * math.cos(math.pi * n / steps))
                loss = step(Tensor(data[chance.integers(0, len(data), batch)]))
                if n == 1 or n % max(1, steps // REPORTS) == 0 or n == steps:
                    value = float(dist.all_reduce(loss, op="mean").item())
                    if dist.rank() == 0:
                        bar.above(report, f"  step {n:4}  loss {value:.3f}  {time.perf_counter() - start:5.1f} s")
                bar.advance(text=f"loss {value:.3f}")
        return value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a GGUF file; an existing one is replaced.

        Raises:
            FormatError: it cannot be written.
        """
        metadata = self.metadata | {"general.file_type": 0}  # float32
        save(path, {name: weight.detach() for name, weight in self.weights.items()}, metadata)
