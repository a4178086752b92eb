"""Pooling: one vector from the hidden states of the tokens of a text, by `<architecture>.pooling_type`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernmill import FormatError, Tensor

from .config import Config
from .weight import Weight, linear

__all__ = ["Pooling"]

Found = Callable[..., Weight | None]  # the tensor of a name and a shape, None where the file has none
Layer = tuple[Weight, Tensor | None]  # a matrix and its bias


@dataclass(frozen=True)
class Pooling:
    """One kind of `config.POOLINGS`.

    `behind` are matrices that multiply the vector. A file that ranks texts has a classifier: `dense` with an
    activation and a norm, `output`, or both; it reads the state that `ranked` names.
    """

    kind: str
    behind: tuple[Weight, ...] = ()
    dense: Layer | None = None
    norm: Tensor | None = None
    output: Layer | None = None
    ranked: str = "last"
    activation: Callable[[Tensor], Tensor] = Tensor.tanh
    gives_chances: bool = False
    epsilon: float = 1e-5

    @classmethod
    def of(cls, config: Config, found: Found, ranked: str, activation: Callable[[Tensor], Tensor]) -> Pooling:
        """The pooling of a model; `ranked` and `activation` are those of its classifier.

        Raises:
            FormatError: a file that ranks texts has no classifier.
        """
        if config.pooling != "rank":
            second, third = found("dense_2.weight", None, config.width), found("dense_3.weight", None, None)
            return cls(config.pooling, tuple(part for part in (second, third) if part is not None))

        def layer(name: str) -> Layer | None:
            weight = found(f"{name}.weight", None, config.width)
            if weight is None:
                return None
            bias = found(f"{name}.bias", weight.shape[0])
            return weight, bias if isinstance(bias, Tensor) else None

        dense, output = layer("cls"), layer("cls.output")
        if dense is None and output is None:
            raise FormatError(
                f"{config.name}.pooling_type is 4 (rank), and the file has neither cls.weight nor cls.output.weight. "
                "Convert it again."
            )
        norm = found("cls.norm.weight", config.width)
        return cls(
            "rank", (), dense, norm if isinstance(norm, Tensor) else None, output, ranked, activation,
            config.name.startswith("qwen3"), config.epsilon,
        )  # fmt: skip

    @property
    def weights(self) -> list[Weight]:
        """The tensors behind the states."""
        layers = [part for layer in (self.dense, self.output) if layer is not None for part in layer]
        return [*self.behind, *(part for part in (*layers, self.norm) if part is not None)]

    def __call__(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the vector of each text, or the scores of its classes; of the kind none a vector for each token.

        Shapes: states (texts, tokens, width), lengths (texts,) -> (texts, width), (texts, classes), or as `states`.
        """
        if self.kind == "none":
            return _multiplied(states, self.behind)
        if self.kind == "rank":
            return self._scores(_pooled(self.ranked, states, lengths))
        return _multiplied(_pooled(self.kind, states, lengths), self.behind)

    def _scores(self, x: Tensor) -> Tensor:
        """Shapes: (texts, width) -> (texts, classes)."""
        if self.dense is not None:
            x = self.activation(linear(x, *self.dense))
            if self.norm is not None:
                x = x - x.mean(-1, keepdim=True)
                x = x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.norm
        if self.output is not None:
            x = linear(x.contiguous(), *self.output)
        return x.softmax(-1) if self.gives_chances else x


def _pooled(kind: str, states: Tensor, lengths: Tensor) -> Tensor:
    """Shapes: states (texts, tokens, width), lengths (texts,) -> (texts, width)."""
    if kind == "mean":
        is_token = Tensor.arange(states.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
        return ((states * is_token.unsqueeze(-1).float()).sum(1) / lengths.unsqueeze(1).float()).contiguous()
    if kind == "cls":
        return states[:, 0].contiguous()
    return states.take_along_dim((lengths - 1).unflatten(0, (-1, 1, 1)), 1).squeeze(1).contiguous()


def _multiplied(x: Tensor, matrices: Sequence[Weight]) -> Tensor:
    for matrix in matrices:
        x = linear(x, matrix)
    return x
