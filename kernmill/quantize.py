"""`kernmill quantize IN OUT MIX`: a GGUF file with its weights in fewer bits, tensor by tensor, piece by piece."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import FormatError, Progress, dtypes

from .formats import gguf, gguf_write
from .formats.gguf_types import TensorType, ValueType
from .formats.quoting import quoted
from .lazy import no_grad
from .quant import BLOCKS
from .quant.importance import Importance
from .quant.mixes import Mix, mix_named
from .tensor import Tensor
from .tensor_bytes import bytes_of, tensor_over

__all__ = ["Recipe", "mix_named", "run"]

# Values that are converted at a time: a multiple of every block, so that one kernel serves all pieces. The K types try
# 16 to 21 scales, and keep up to 180 bytes a value meanwhile.
PIECE = 1 << 20
_OF_PARTS = re.compile(r"split\.|general\.(quantization_version|alignment)$")
_WRITABLE = 0o222  # by anyone: a file without these bits is protected from root as well
_VERSION = 2  # of the block layouts, as the reference counts

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to quantize. `requantize`: accept weights that have blocks already. `importance`: of the columns of matrices,
    which the search for scales weighs errors by."""

    mix: str
    requantize: bool = False
    importance: Importance | None = None


def run(
    source: str | os.PathLike[str], target: str | os.PathLike[str], wanted: Recipe | str, *, report: Report = print
) -> None:
    """Write `target` from `source`; all of it or nothing. A split source becomes one file. A string is the mix.

    Raises:
        FormatError: a file that cannot be read or written, a target that is the source, a mix that kernmill does not
            make, values that are inf or nan, weights that have blocks already (without `requantize`), an importance
            matrix of another model.
    """
    start = time.perf_counter()
    wanted = Recipe(wanted) if isinstance(wanted, str) else wanted
    recipe = mix_named(wanted.mix)
    file = gguf.read(source)
    kinds = {name: _new_type(file, entry, recipe, wanted.requantize) for name, entry in file.entries.items()}
    weights = _importances(file, kinds, wanted.importance)
    _check_target(file, target)
    after = sum(kind.nbytes(file.entries[name].shape) for name, kind in kinds.items())
    _check_room(target, after)
    with Progress("quantizing", len(kinds), "tensor") as bar:

        def begin(line: str) -> None:
            bar.above(report, line)
            bar.advance()

        tensors = {
            name: gguf_write.NewTensor(
                kind, file.entries[name].shape,
                partial(_converted, file, name, kind, n, begin, weights.get(name)),
            )
            for n, (name, kind) in enumerate(kinds.items(), 1)
        }  # fmt: skip
        gguf_write.write(target, _metadata(file, recipe, wanted), tensors, alignment=file.alignment)
    before = sum(entry.stop - entry.start for entry in file.entries.values())
    if fallen := _fallen(file, kinds, recipe):
        report(fallen)
    report(f"{os.fspath(target)}: {recipe.name}, {_mib(after)} of weights from {_mib(before)}, "
           f"in {time.perf_counter() - start:.1f} s")  # fmt: skip


def _metadata(file: gguf.GGUFFile, recipe: Mix, wanted: Recipe) -> dict[str, object]:
    """The metadata of the new file: those of the old one, and how it was made."""
    number = partial(gguf_write.Typed, ValueType.UINT32)
    metadata: dict[str, object] = {k: file.metadata.raw(k) for k in file.metadata if not _OF_PARTS.match(k)}
    if recipe.file_type is not None:
        metadata["general.file_type"] = number(recipe.file_type)
    metadata["general.quantization_version"] = number(_VERSION)
    if (by := wanted.importance) is not None:
        metadata["quantize.imatrix.file"] = by.where
        metadata["quantize.imatrix.dataset"] = by.texts[-1] if by.texts else ""
        metadata["quantize.imatrix.entries_count"] = number(len(by.columns))
        metadata["quantize.imatrix.chunks_count"] = number(by.chunks)
    return metadata


def _importances(
    file: gguf.GGUFFile, kinds: Mapping[str, TensorType], found: Importance | None
) -> dict[str, np.ndarray[Any, Any]]:
    """The mean squares of the columns of each matrix that gets another type, by its name."""
    if found is None:
        return {}
    changed = {name: file.entries[name].shape for name, kind in kinds.items() if kind is not file.entries[name].type}
    if not found.columns.keys() & file.entries.keys():
        raise FormatError(
            f"{found.where}: it has none of the matrices of {file.where}: the importance matrix is of another model. "
            "Compute one for this model: kernmill imatrix."
        )
    weights = {name: found.weights(name, shape) for name, shape in changed.items()}
    return {name: each for name, each in weights.items() if each is not None}


def _check_target(file: gguf.GGUFFile, target: str | os.PathLike[str]) -> None:
    """The target is not the source, and may be written."""
    if any(os.path.exists(target) and os.path.samefile(target, path) for path in file.paths):
        raise FormatError(f"{os.fspath(target)}: is the input file. Write to a different path.")
    if os.path.isfile(target) and not (os.stat(target).st_mode & _WRITABLE and os.access(target, os.W_OK)):
        raise FormatError(f"{os.fspath(target)}: is write-protected. Delete it, or write to a different path.")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB"


def _check_room(target: str | os.PathLike[str], size_bytes: int) -> None:
    """The weights fit the disk: better said before the work than after it."""
    folder = Path(target).resolve().parent
    if not folder.is_dir():
        return  # the writer says so
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise FormatError(
            f"{os.fspath(target)}: cannot be written: it needs {_mib(size_bytes)}, the disk has {_mib(free)} left. "
            "Choose a different path.")  # fmt: skip


def _sharing(metadata: gguf.Metadata, model: str) -> int:
    """How many heads of queries share one of keys and values; 1 where layers differ, or nothing is said."""
    queries, keys = (metadata.get(f"{model}.attention.{name}") for name in ("head_count", "head_count_kv"))
    return queries // keys if isinstance(queries, int) and isinstance(keys, int) and keys > 0 else 1


def _facts(file: gguf.GGUFFile) -> dict[str, Any]:
    """Return the facts that a mix depends on in addition to a tensor's name."""
    model = file.metadata.read("general.architecture", str, "")
    count = file.metadata.read(f"{model}.block_count", int, 0)
    return {
        "layers": count, "is_tied": "output.weight" not in file.entries, "sharing": _sharing(file.metadata, model),
    }  # fmt: skip


def _fallen(file: gguf.GGUFFile, kinds: Mapping[str, TensorType], recipe: Mix) -> str:
    """Describe which types were replaced by others; empty if all rows are multiples of their block size."""
    facts, counts = _facts(file), Counter[tuple[str, str]]()
    for name, kind in kinds.items():
        if kind is recipe.type_for(name, file.entries[name].shape, **facts):
            counts[recipe.wanted(name, **facts), kind.name] += 1
    changes = {types: count for types, count in counts.items() if types[0] != types[1]}
    shown = ", ".join(f"{kind} for {wanted} in {count}" for (wanted, kind), count in changes.items())
    count = sum(changes.values())
    return f"{count} tensors have rows that are not a multiple of the block size: {shown}" if changes else ""


def _new_type(file: gguf.GGUFFile, entry: gguf.GGUFEntry, recipe: Mix, requantize: bool) -> TensorType:
    """Return the new type of a tensor."""
    kind = recipe.type_for(entry.name, entry.shape, **_facts(file))
    if kind is None or kind is entry.type or (entry.type.dtype is not None and not entry.type.dtype.is_float):
        return entry.type
    if entry.type.dtype is None:
        if not requantize:
            raise FormatError(
                f"{file.where}: tensor {quoted(entry.name)} is {entry.type.name} already; requantizing loses "
                "accuracy. Start from an F16, BF16 or F32 file, or pass --requantize."
            )
        if entry.type.name not in BLOCKS:
            raise FormatError(
                f"{file.where}: tensor {quoted(entry.name)} is {entry.type.name}: this type is for computation "
                "only and may not be stored in a file. Convert the model again.")  # fmt: skip
    return kind


# --- one tensor ------------------------------------------------------------------------------------------------------
def _converted(
    file: gguf.GGUFFile, name: str, kind: TensorType, order: int, report: Report,
    importance: np.ndarray[Any, Any] | None,
) -> Iterator[memoryview]:  # fmt: skip
    """The bytes of a tensor in its new type."""
    entry, values = file.entries[name], file.values(name)
    shape = " x ".join(str(size) for size in entry.shape)
    is_plain = name.isprintable() and name.isascii()
    shown = name if is_plain else quoted(name).encode("ascii", "backslashreplace").decode()  # for any terminal
    count = f"[{order:4}/{len(file.entries):4}] {shown:36} {shape:>16}"
    if kind is entry.type:
        report(f"{count}  {kind.name}")
        yield values
        return
    report(f"{count}  {entry.type.name} -> {kind.name}  {_mib(len(values))} -> {_mib(kind.nbytes(entry.shape))}")
    step, left = PIECE // entry.type.values * entry.type.size_bytes, kind.nbytes(entry.shape)
    for start in range(0, len(values), step):
        piece = values[start : start + step]
        if len(piece) < step and start:  # the last of several is as long as the others: one kernel for all
            piece = memoryview(bytes(piece) + bytes(step - len(piece)))
        first, number = (size // entry.type.size_bytes * entry.type.values for size in (start, len(piece)))
        weights = None if importance is None else _of_values(importance, entry.shape, first, number)
        made = _encoded(piece, entry.type, kind, weights)
        if made is None:
            raise FormatError(
                f"{file.where}: tensor {quoted(name)} has values that are inf or nan, or too large for "
                f"{kind.name}. Choose another mix, or convert the model again.")  # fmt: skip
        yield made[:left]
        left -= len(made[:left])


def _of_values(means: np.ndarray[Any, Any], shape: Sequence[int], first: int, count: int) -> np.ndarray[Any, Any]:
    """The importance of `count` values from the value `first` on. Shapes: means (matrices, columns), shape that of the
    tensor; the result (count,). Dtypes: float32."""
    rows = np.arange(first // shape[-1], -(-(first + count) // shape[-1]))
    found = means[rows // shape[-2] % len(means)].astype(np.float32).ravel()
    return found[first % shape[-1] :][:count]


@no_grad()
def _encoded(
    piece: memoryview, old: TensorType, new: TensorType, importance: np.ndarray[Any, Any] | None = None
) -> memoryview | None:
    """Convert the bytes of a piece to another type; None if it contains a non-finite number, before or after."""
    if old.dtype is not None:
        values = tensor_over(piece, old.dtype, (len(piece) // old.size_bytes,)).float()
    else:
        data = tensor_over(piece, dtypes.uint8, (len(piece) // old.size_bytes, old.size_bytes))
        values = BLOCKS[old.name].decode(data).flatten()
    were_finite = values.isfinite().all()
    if new.dtype is not None:
        result = back = values.cast(new.dtype)
    else:
        weights = None if importance is None else Tensor(importance).reshape(-1, new.values)
        result = BLOCKS[new.name].encode(values.reshape(-1, new.values), weights)
        back = BLOCKS[new.name].decode(result.realize(were_finite))
    are_finite = back.isfinite().all()
    result.realize(were_finite, are_finite)
    return bytes_of(result) if were_finite.item() and are_finite.item() else None
