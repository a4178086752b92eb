"""Adapters: GGUF files that change a model while it runs, without a copy of its weights.

LoRA has small matrices: of a matrix W with a pair A, B the product is W x + scale * B (A x). A control vector has a
direction for each layer, which is added, times the scale, to the state after the layer. Several adapters add up. What
depends on scales is a tensor: one graph serves all of them.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmill import FormatError, SettingError, Tensor, cat

from ..formats import gguf
from ..formats.quoting import escaped, quoted
from ..quant import load_tensor
from .arch import Architecture, Config, Weight
from .arch.part import Slices
from .arch.weight import chosen, linear, nbytes, rows
from .model_file import digest_of, naming

__all__ = [
    "AdaptedMatrix", "Adapter", "AdapterScales", "ControlVector", "Given", "adapters_of", "checked_scale",
]  # fmt: skip

_FIRST, _SECOND = ".lora_a", ".lora_b"
_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True)
class Pair:
    """The two matrices of an adapter for a weight, and the adapter's scale. Shapes: first (rank, in), second (out,
    rank), of an embedding first (in, rank) and second (out, rank) with tokens as `in`; factor ()."""

    first: Tensor
    second: Tensor
    factor: Tensor


@dataclass(frozen=True)
class AdaptedMatrix:
    """A matrix with the pairs of adapters: a `Matrix` of an architecture. Shapes: (out, in); of all experts of a layer
    (experts, out, in), as those of the pairs."""

    weight: Weight
    pairs: tuple[Pair, ...]
    is_embedding: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        return tuple(self.weight.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the matrix and its pairs."""
        return nbytes(self.weight) + sum(nbytes(pair.first) + nbytes(pair.second) for pair in self.pairs)

    @property
    def device(self) -> str:
        """The device of the bytes."""
        return self.weight.device

    @property
    def parts(self) -> list[Weight]:
        """All matrices in it."""
        return [self.weight, *(part for pair in self.pairs for part in (pair.first, pair.second))]

    def rows(self, ids: Tensor) -> Tensor:
        """Shapes: (..) -> (.., in). Dtypes: ints to floats."""
        found = rows(self.weight, ids)
        for pair in self.pairs:
            found = found + linear(rows(pair.first, ids), pair.second) * pair.factor
        return found

    def chosen(self, x: Tensor, ids: Tensor, counts: Tensor | None = None) -> Tensor:
        """Rows with the expert of their tile. Shapes: (tiles, rows, in), (tiles,), (tiles,) -> (tiles, rows, out)."""
        found = chosen(x, self.weight, ids, counts=counts)
        for pair in self.pairs:
            small = chosen(x, pair.first, ids)
            found = found + chosen(small, pair.second, ids) * pair.factor
        return found

    def linear(self, x: Tensor) -> Tensor:
        """x @ self.T. Shapes: (.., in) -> (.., out)."""
        found = linear(x, self.weight)
        for pair in self.pairs:
            if self.is_embedding:  # the output of a model that ties it: the pair the other way round
                found = found + x.matmul(pair.second.float()).matmul(pair.first.float().mT) * pair.factor
                continue
            small = linear(x, pair.first)
            found = found + linear(small, pair.second) * pair.factor
        return found


def _rank_of(name: str, first: Any) -> int:
    """The rank of a pair by its first matrix."""
    return int(first.shape[-1] if name == _EMBEDDING else first.shape[-2])


class Adapter:
    """An adapter of a model, and its scale, which can be changed between two texts.

    Raises:
        FormatError: the file cannot be read, has no adapter, or one for another architecture.
        SettingError: a scale that is not a finite number.
    """

    def __init__(self, file: gguf.GGUFFile, scale: float, architecture: str) -> None:
        self.path, self.scale, self._file = file.paths[0], checked_scale(scale), file
        self.digest = digest_of(file)
        self._factors: dict[int, Tensor] = {}  # by rank
        with naming(self._file):
            metadata = self._file.metadata
            kind, type_ = metadata.get("general.type"), metadata.get("adapter.type")
            if kind != "adapter" or type_ != "lora":
                raise FormatError(
                    f"it is neither a LoRA adapter nor a control vector: general.type {quoted(kind)}, adapter.type "
                    f"{quoted(type_)}. Give a file of one."
                )
            if metadata.get("general.architecture") != architecture:
                of = quoted(metadata.get("general.architecture"))
                raise FormatError(f"the adapter is for a model of architecture {of}, and this one is {architecture}.")
            if metadata.get("adapter.alora.invocation_tokens") is not None:
                raise FormatError("adapters that begin at certain tokens (adapter.alora) are not supported.")
            alpha = metadata.get("adapter.lora.alpha", 0.0)
            if not isinstance(alpha, numbers.Real) or not np.isfinite(float(alpha)):
                raise FormatError(f"adapter.lora.alpha is {quoted(alpha)}: must be a number.")
            self._alpha = float(alpha)
            self._names = {name.removesuffix(_FIRST).removesuffix(_SECOND) for name in self._file.entries}
            self._left = set(self._names)

    def adapted(self, name: str, weight: Weight, shape: tuple[int, ...], own: Slices) -> Weight:
        """Return a weight with the adapter's pair for it; without one the weight. `own` is the part of the model's
        matrix, of this shape, that the weight has.

        Raises:
            FormatError: the pair does not fit.
        """
        if not self.changes(name):
            return weight
        first, second = self.check_pair(name, shape)
        is_embedding = name == _EMBEDDING
        if len(shape) == 3 and (own.rows or own.columns is not None):
            raise FormatError(f"{self.path}: {escaped(name)}: adapters of experts are not divided over ranks.")
        if is_embedding:
            first = _own_rows(first, own.rows)
        else:
            second = _own_rows(second, own.rows)
        if own.columns is not None:
            first = first[:, slice(*own.columns)].contiguous().realize()
        known = weight if isinstance(weight, AdaptedMatrix) else AdaptedMatrix(weight, (), is_embedding)
        pair = Pair(first, second, self._factor(_rank_of(name, first)))
        return AdaptedMatrix(known.weight, (*known.pairs, pair), is_embedding)

    def changes(self, name: str) -> bool:
        """True if there is a pair for a weight of this name."""
        return name in self._names

    def check_pair(self, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the pair for a weight of this shape; from now on it counts as used.

        Raises:
            FormatError: one of the pair is missing, or it does not fit.
        """
        self._left.discard(name)
        with naming(self._file):
            if len(shape) not in (2, 3):
                raise FormatError(f"{escaped(name)} is not a matrix, and only matrices can be adapted.")
            first, second = (self._half(name + end, len(shape)) for end in (_FIRST, _SECOND))
            *experts, rows, columns = shape
            rank = _rank_of(name, first)
            wanted = (
                ((rows, rank), (columns, rank)) if name == _EMBEDDING
                else ((*experts, rank, columns), (*experts, rows, rank))
            )  # fmt: skip
            if (tuple(first.shape), tuple(second.shape)) != wanted:
                raise FormatError(
                    f"the pair of {escaped(name)} has shapes {tuple(first.shape)} and {tuple(second.shape)}, and the "
                    f"model's matrix {shape} needs {wanted[0]} and {wanted[1]}: the adapter is for another model."
                )
        return first, second

    def difference(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return what the pair adds to a weight: scale * B A. Shapes: `shape`. Dtypes: float32."""
        first, second = (part.float().numpy() for part in self.check_pair(name, shape))
        product = first @ second.T if name == _EMBEDDING else second @ first
        return np.asarray(product * self._factor_value(_rank_of(name, first)), np.float32)

    def check_all_used(self, elsewhere: Collection[str] = ()) -> None:
        """Check that the model has every weight that the adapter changes. `elsewhere`: those that other ranks have.

        Raises:
            FormatError: it has not.
        """
        if missing := self._left.difference(elsewhere):
            name = escaped(min(missing))
            raise FormatError(f"{self.path}: the model has no weight {name}: the adapter is for another model.")

    def rescale(self, scale: float) -> None:
        """Change the scale."""
        self.scale = checked_scale(scale)
        for rank, factor in self._factors.items():
            factor.assign(Tensor(self._factor_value(rank), device=factor.device)).realize()

    def _half(self, name: str, axes: int) -> Tensor:
        if name not in self._file.entries:
            raise FormatError(f"it has no tensor {escaped(name)}: each adapted weight needs {_FIRST} and {_SECOND}.")
        found = load_tensor(self._file, name, copied=True)
        if not isinstance(found, Tensor) or not found.dtype.is_float or found.ndim != axes:
            what = "a matrix of floats" if axes == 2 else "a matrix of floats for each expert"
            raise FormatError(f"{escaped(name)}: must be {what}.")
        return found

    def _factor(self, rank: int) -> Tensor:
        if rank not in self._factors:
            self._factors[rank] = Tensor(self._factor_value(rank)).realize()
        return self._factors[rank]

    def _factor_value(self, rank: int) -> np.ndarray[Any, Any]:
        return np.array(self.scale * self._alpha / rank if self._alpha else self.scale, np.float32)


class ControlVector:
    """A control vector of a model, and its scale, which can be changed between two texts.

    `layers`: the first and the last layer that it changes; None: all that the file names.

    Raises:
        FormatError: the file cannot be read, or its directions are not for such a model.
        SettingError: a scale that is not a finite number, or layers that the model or the file does not have.
    """

    def __init__(
        self, file: gguf.GGUFFile, scale: float, config: Config, layers: tuple[int, int] | None = None
    ) -> None:
        self.path, self.scale = file.paths[0], checked_scale(scale)
        self.digest = digest_of(file)
        self._directions: dict[int, np.ndarray[Any, Any]] = {}
        self._added: dict[int, Tensor] = {}
        with naming(file):
            hint = file.metadata.get("controlvector.model_hint", config.name)
            if hint != config.name:
                raise FormatError(
                    f"the control vector is for a model of architecture {quoted(hint)}, and this one is {config.name}."
                )
            for name in file.entries:
                found = re.fullmatch(r"direction\.(\d{1,9})", name)
                layer = int(found[1]) if found else 0
                if not 1 <= layer < config.layers:
                    raise FormatError(
                        f"a control vector has a tensor direction.N for each layer N from 1 to {config.layers - 1}, "
                        f"and this one has {escaped(name)}: it is for another model."
                    )
                direction = load_tensor(file, name, copied=True)
                if not isinstance(direction, Tensor) or direction.shape != (config.width,):
                    raise FormatError(
                        f"{escaped(name)} has shape {tuple(direction.shape)}, and the states of this model have "
                        f"{config.width} floats: the control vector is for another model."
                    )
                self._directions[layer] = direction.float().numpy()
            if not self._directions:
                raise FormatError("a control vector without a tensor direction.N changes nothing.")
        if layers is not None:
            self._leave_only(*layers, config.layers)

    def _leave_only(self, first: int, last: int, count: int) -> None:
        known = self._directions
        self._directions = {layer: one for layer, one in known.items() if first <= layer <= last}
        if not 1 <= first <= last <= count or not self._directions:
            raise SettingError(
                f"control vector: layers {first} to {last}: the model has layers 1 to {count - 1}, and {self.path} "
                f"changes {min(known)} to {max(known)}. Choose some of these."
            )

    def attach(self, architecture: Architecture) -> None:
        """Have the layers of a model add their directions, each on the device of its layer."""
        homes = architecture.config.homes
        for layer in self._directions:
            device = homes[layer] if homes else None
            self._added[layer] = Tensor(self._scaled_direction(layer), device=device).realize()
            architecture.added.setdefault(layer, []).append(self._added[layer])

    def adapted(self, name: str, weight: Weight, shape: tuple[int, ...], own: Slices) -> Weight:
        """Return the weight: a control vector changes none."""
        return weight

    def check_all_used(self, elsewhere: Collection[str] = ()) -> None:
        """Nothing is left to check: the model has all layers that the file names."""

    def rescale(self, scale: float) -> None:
        """Change the scale."""
        self.scale = checked_scale(scale)
        for layer, added in self._added.items():
            added.assign(Tensor(self._scaled_direction(layer), device=added.device)).realize()

    def _scaled_direction(self, layer: int) -> np.ndarray[Any, Any]:
        return np.asarray(self._directions[layer] * np.float32(self.scale), np.float32)


class AdapterScales(dict[str, float]):
    """Scales of adapters by path. `layers`: the first and the last layer that control vectors change; None: all."""

    layers: tuple[int, int] | None = None


Given = Mapping[str, float] | Sequence[str]  # paths, with a scale each or without


def adapters_of(given: Given, config: Config) -> list[Adapter | ControlVector]:
    """Open LoRA adapters and control vectors for a model: paths with a scale each, or without (1)."""
    scales = given if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)
    layers = given.layers if isinstance(given, AdapterScales) else None
    found: list[Adapter | ControlVector] = []
    for path, scale in scales.items():
        file = gguf.read(path)
        is_vector = file.metadata.get("general.architecture") == "controlvector"
        found.append(ControlVector(file, scale, config, layers) if is_vector else Adapter(file, scale, config.name))
    return found


def _own_rows(matrix: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    """Some rows of a matrix; without ranges all of them."""
    return cat([matrix[start:stop] for start, stop in ranges]).contiguous().realize() if ranges else matrix


def checked_scale(scale: object) -> float:
    """Return a scale of an adapter. Raises SettingError unless it is a finite number."""
    if not isinstance(scale, numbers.Real) or isinstance(scale, bool) or not np.isfinite(float(scale)):
        raise SettingError(f"adapter: scale={scale!r}: must be a finite number.")
    return float(scale)
