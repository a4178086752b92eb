"""Pooling: one vector from the hidden states of the tokens of a text, by `<architecture>.pooling_type`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernmill import FormatError, Tensor

from .config import Config
from .weight import Weight, linear

__all__ = ["Pooling"]

Found = Callable[..., Weight | None]  # the tensor of a name and a shape, None where the file has none


@dataclass(frozen=True)
class Pooling:
    """One kind of `config.POOLINGS`. A file that ranks texts has a classifier: `dense` with tanh, `output`, or both."""

    kind: str
    dense: tuple[Weight, Tensor | None] | None = None
    output: tuple[Weight, Tensor | None] | None = None
    gives_chances: bool = False

    @classmethod
    def of(cls, config: Config, found: Found) -> Pooling:
        """The pooling of a model.

        Raises:
            FormatError: a file that ranks texts has no classifier.
        """
        if config.pooling != "rank":
            return cls(config.pooling)

        def layer(name: str) -> tuple[Weight, Tensor | None] | None:
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
        return cls("rank", dense, output, config.name.startswith("qwen3"))

    @property
    def weights(self) -> list[Weight]:
        """The tensors of the classifier."""
        return [part for layer in (self.dense, self.output) if layer is not None for part in layer if part is not None]

    def __call__(self, states: Tensor, normalize: bool) -> Tensor:
        """Return the vector of a text; class scores are not normalized. Shapes: states (tokens, width)."""
        if self.kind == "rank":
            return self.scores(states[-1:]).squeeze(0)
        vector = {"mean": lambda: states.mean(0), "cls": lambda: states[0], "last": lambda: states[-1]}.get(
            self.kind, lambda: states
        )()
        return vector.normalize(axis=-1) if normalize else vector

    def scores(self, x: Tensor) -> Tensor:
        """Shapes: (1, width) -> (1, classes)."""
        if self.dense is not None:
            x = linear(x, *self.dense).tanh()
        if self.output is not None:
            x = linear(x, *self.output)
        return x.softmax(-1) if self.gives_chances else x
