"""class Recipe: how a file is quantized: a mix, types of single tensors, an importance matrix, and changed metadata.

Options have the names and the meaning of llama.cpp's quantizer. Tests: tests/kernmill/quant/test_recipe.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kernmill.ir import FormatError

from ..formats import gguf
from ..formats.gguf_types import TYPES, TensorType, tensor_type
from ..formats.quoting import quoted
from .importance import Importance
from .mixes import OUTPUT_AND_EMBEDDING, fitting_type, is_weight, mix_named
from .registry import BLOCKS

__all__ = ["NewType", "Recipe", "choices", "type_named"]

_NEED_IMPORTANCE = {"IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M"}  # else the result is useless
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


class NewType(NamedTuple):
    """The new type of a tensor; `wanted` is the one that its rows are not a multiple of, or the same."""

    type: TensorType
    wanted: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantize a file.

    requantize      accept weights that have blocks already.
    importance      of the columns of matrices, which searches for scales weigh errors by.
    tensor_types    pairs of a regular expression and a type, for the tensors whose names it is found in; the first
                    that is found decides.
    output, embedding   the types of `output.weight` and `token_embd.weight`.
    pure            all matrices get the base type of the mix.
    keep_output     `output.weight` is unchanged.
    keep_split      write as many files as the source has.
    overrides       metadata that replace those of the source, as `formats.gguf_write.write` takes them.
    """

    mix: str
    requantize: bool = False
    importance: Importance | None = None
    tensor_types: tuple[tuple[str, str], ...] = ()
    output: str | None = None
    embedding: str | None = None
    pure: bool = False
    keep_output: bool = False
    keep_split: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)


def type_named(name: str) -> TensorType:
    """Return a type that kernmill writes.

    Raises:
        FormatError: there is no such type, or kernmill only reads it.
    """
    known = [kind.name for kind in TYPES.values() if _is_written(kind)]
    if name.upper() not in known:
        raise FormatError(f"quantize: type {name!r}: must be one of {', '.join(known)}.")
    return tensor_type(name)


def _is_written(kind: TensorType) -> bool:
    if kind.dtype is not None:
        return kind.name in ("F32", "F16", "BF16")
    return kind.name in BLOCKS and BLOCKS[kind.name].write is not None


def choices(file: gguf.GGUFFile, recipe: Recipe) -> dict[str, NewType]:
    """Return the new type of each tensor of a file, by its name.

    Raises:
        FormatError: an unknown type, a pattern that is invalid or in no name of a matrix, weights that have blocks
            already, a type of few bits without the importance of its columns.
    """
    rules = _Rules(file, recipe)
    found = {name: rules.choice(entry) for name, entry in file.entries.items()}
    rules.check_all_used()
    return found


class _Rules:
    """The rules of a recipe for the tensors of a file."""

    def __init__(self, file: gguf.GGUFFile, recipe: Recipe) -> None:
        self._file, self._recipe, self._mix = file, recipe, mix_named(recipe.mix)
        self._patterns = [(_compiled(pattern), type_named(name)) for pattern, name in recipe.tensor_types]
        self._single = {
            name: type_named(kind)
            for names, kind in ((("output.weight",), recipe.output), (_EMBEDDINGS, recipe.embedding))
            if kind is not None
            for name in names
        }
        self._unused = dict.fromkeys(pattern for pattern, _ in recipe.tensor_types)
        metadata = file.metadata
        model = metadata.read("general.architecture", str, "")
        self._facts: dict[str, Any] = {
            "layers": metadata.read(f"{model}.block_count", int, 0),
            "is_tied": "output.weight" not in file.entries,
            "sharing": _sharing(metadata, model),
        }

    def choice(self, entry: gguf.GGUFEntry) -> NewType:
        """Return the new type of a tensor."""
        wanted = self._wanted_type(entry)
        is_number = entry.type.dtype is None or entry.type.dtype.is_float
        if wanted is None or not is_number:
            return NewType(entry.type, entry.type.name)
        kind = fitting_type(wanted, entry.shape)
        if kind is not entry.type:
            self._check_source(entry)
        self._check_importance(entry.name, kind)
        return NewType(kind, wanted)

    def _wanted_type(self, entry: gguf.GGUFEntry) -> str | None:
        """The type of a tensor whose rows are multiples of the block size; None: it is unchanged."""
        name, recipe, mix = entry.name, self._recipe, self._mix
        if not mix.base or not is_weight(name, entry.shape) or (recipe.keep_output and name == "output.weight"):
            return None
        if name in self._single:
            return self._single[name].name
        matching = [(pattern.pattern, kind) for pattern, kind in self._patterns if pattern.search(name)]
        for pattern, _ in matching:
            self._unused.pop(pattern, None)
        if matching:
            return matching[0][1].name
        if recipe.pure:
            return mix.base
        if self._facts["is_tied"] and name == "token_embd.weight" and recipe.output is not None:
            return self._single["output.weight"].name
        return mix.wanted(name, **self._facts)

    def _check_source(self, entry: gguf.GGUFEntry) -> None:
        """A tensor may be converted."""
        if entry.type.dtype is not None:
            return
        where, name = self._file.where, quoted(entry.name)
        if not self._recipe.requantize:
            raise FormatError(
                f"{where}: tensor {name} is {entry.type.name} already; requantizing loses accuracy. Start from an F16, "
                "BF16 or F32 file, or pass --requantize."
            )
        if entry.type.name not in BLOCKS:
            raise FormatError(
                f"{where}: tensor {name} is {entry.type.name}: this type is for computation only and may not be stored "
                "in a file. Convert the model again."
            )

    def _check_importance(self, name: str, kind: TensorType) -> None:
        """A type of few bits has the importance of its columns, except where llama.cpp goes without too."""
        is_small = kind.name in _NEED_IMPORTANCE or (kind.name == "Q2_K" and self._mix.name == "Q2_K_S")
        if not is_small or name in (*_EMBEDDINGS, *OUTPUT_AND_EMBEDDING):
            return
        known = self._recipe.importance
        if known is None or name not in known.columns:
            lacks = "no importance matrix is given" if known is None else f"{known.where} does not have it"
            raise FormatError(
                f"{self._file.where}: tensor {quoted(name)}: {kind.name} has too few bits without the importance of "
                f"columns, and {lacks}. Compute one with kernmill imatrix, and pass --imatrix FILE."
            )

    def check_all_used(self) -> None:
        """Each pattern is found in a name."""
        for pattern in self._unused:
            raise FormatError(
                f"quantize: --tensor-type {pattern!r} is in no name of a matrix of {self._file.where}. kernmill show "
                "--tensors lists them."
            )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise FormatError(f"quantize: {pattern!r} is not a regular expression: {error}.") from None


def _sharing(metadata: gguf.Metadata, model: str) -> int:
    """How many heads of queries share one of keys and values; 1 where layers differ, or nothing is said."""
    queries, keys = (metadata.get(f"{model}.attention.{name}") for name in ("head_count", "head_count_kv"))
    return queries // keys if isinstance(queries, int) and isinstance(keys, int) and keys > 0 else 1
