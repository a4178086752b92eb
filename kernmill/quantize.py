"""`kernmill quantize IN OUT MIX`: a GGUF file with its weights in fewer bits, tensor by tensor, piece by piece."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import FormatError, Progress, dtypes

from .formats import gguf, gguf_write
from .formats.gguf_made import MadeFile, MadeTensor, made_file
from .formats.gguf_split import check_targets, part_paths, without_parts, write_parts
from .formats.gguf_types import TensorType, ValueType
from .formats.quoting import quoted
from .lazy import no_grad
from .quant import BLOCKS
from .quant.importance import Importance
from .quant.mixes import mix_named
from .quant.recipe import NewType, Recipe, choices
from .tensor import Tensor
from .tensor_bytes import bytes_of, tensor_over

__all__ = ["Recipe", "dry_run", "mix_named", "quantized", "run"]

# Values that are converted at a time: a multiple of every block, so that one kernel serves all pieces. The K types try
# 16 to 21 scales, and keep up to 180 bytes a value meanwhile.
PIECE = 1 << 20
_SEARCHED = 128  # types of codebooks are given so much less: each try compares up to 4096 entries with 8 values
_WRITABLE = 0o222  # by anyone: a file without these bits is protected from root as well
_VERSION = 2  # of the block layouts, as the reference counts

Report = Callable[[str], None]


def run(
    source: str | os.PathLike[str] | gguf.GGUFFile,
    target: str | os.PathLike[str],
    recipe: Recipe | str,
    *,
    report: Report = print,
) -> None:
    """Write `target` from `source`, a path or an open file; all of it or nothing. A split source becomes one file, or
    with `keep_split` as many files, named by the prefix `target`. A string is the mix.

    Raises:
        FormatError: a file that cannot be read or written, a target that is the source, a mix or type that kernmill
            does not make, values that are inf or nan, weights that have blocks already (without `requantize`), an
            importance matrix of another model, a pattern that is in no name.
    """
    start = time.perf_counter()
    recipe = Recipe(recipe) if isinstance(recipe, str) else recipe
    file = _opened(source)
    found = choices(file, recipe)
    weights = _importances(file, found, recipe.importance)
    count = len(file.parts) if recipe.keep_split else 1
    targets = part_paths(target, count) if count > 1 else [os.fspath(target)]
    check_targets(file, targets)
    for path in targets:
        _check_writable(path)
    after = sum(choice.type.nbytes(file.entries[name].shape) for name, choice in found.items())
    _check_room(target, after)
    with Progress("quantizing", len(found), "tensor") as bar:

        def begin(line: str) -> None:
            bar.above(report, line)
            bar.advance()

        parts: list[dict[str, gguf_write.NewTensor]] = [{} for _ in range(count)]
        for n, (name, choice) in enumerate(found.items(), 1):
            entry = file.entries[name]
            values = partial(_converted, file, name, choice.type, n, begin, weights.get(name))
            parts[entry.part if count > 1 else 0][name] = gguf_write.NewTensor(choice.type, entry.shape, values)
        if count > 1:
            write_parts(target, _metadata(file, recipe), parts, alignment=file.alignment)
        else:
            gguf_write.write(target, _metadata(file, recipe), parts[0], alignment=file.alignment)
    if fallen := _fallen(found):
        report(fallen)
    changed = [name for name, choice in found.items() if choice.type is not file.entries[name].type]
    if weights and len(weights) < len(changed):
        report(f"{len(changed) - len(weights)} of {len(changed)} tensors are not in the importance matrix, such as "
               f"{_printable_name(min(set(changed) - weights.keys()))}: their errors are not weighed")  # fmt: skip
    name, before = mix_named(recipe.mix).name, _mib(_weight_bytes(file))
    seconds = time.perf_counter() - start
    report(f"{os.fspath(target)}: {name}, {_mib(after)} of weights from {before}, in {seconds:.1f} s")


def dry_run(source: str | os.PathLike[str] | gguf.GGUFFile, recipe: Recipe, *, report: Report = print) -> None:
    """Report a table of what `run` would write: of each tensor its shape, its types, and its bytes; then the total.

    Raises:
        FormatError: as `run`, except for values.
    """
    file = _opened(source)
    found = choices(file, recipe)
    _importances(file, found, recipe.importance)
    report(f"{'tensor':36} {'shape':>20} {'from':>8} {'to':>8} {'bytes':>14}")
    total = numbers = 0
    for name, choice in found.items():
        entry = file.entries[name]
        size = choice.type.nbytes(entry.shape)
        total, numbers = total + size, numbers + prod(entry.shape)
        shape = " x ".join(map(str, entry.shape))
        report(f"{_printable_name(name):36} {shape:>20} {entry.type.name:>8} {choice.type.name:>8} {size:14,}")
    if fallen := _fallen(found):
        report(fallen)
    bits = 8 * total / max(1, numbers)
    report(f"total: {total:,} bytes ({_mib(total)}) from {_weight_bytes(file):,}, {bits:.2f} bits a value")


def quantized(file: gguf.GGUFFile, mix: str) -> gguf.GGUFFile:
    """A file whose weights are quantized when they are read: for a model that is loaded once, without a new file.

    Raises:
        FormatError: as `run`; values that are inf or nan when they are read.
    """
    found = choices(file, Recipe(mix))
    made = {
        name: MadeTensor(
            choice.type, file.entries[name].shape, partial(_whole, file, name, choice.type),
            partial(file.sample, name), partial(file.release, name),
        )
        for name, choice in found.items() if choice.type is not file.entries[name].type
    }  # fmt: skip
    result = made_file(file, made)
    if isinstance(file, MadeFile):
        result.made = {**file.made, **made}
    return result


def _whole(file: gguf.GGUFFile, name: str, kind: TensorType) -> memoryview:
    return memoryview(b"".join(_converted(file, name, kind, 0, lambda _: None, None)))


def _opened(source: str | os.PathLike[str] | gguf.GGUFFile) -> gguf.GGUFFile:
    return source if isinstance(source, gguf.GGUFFile) else gguf.read(source)


def _weight_bytes(file: gguf.GGUFFile) -> int:
    """The bytes of all tensors of a file."""
    return sum(entry.stop - entry.start for entry in file.entries.values())


def _check_writable(target: str) -> None:
    if os.path.isfile(target) and not (os.stat(target).st_mode & _WRITABLE and os.access(target, os.W_OK)):
        raise FormatError(f"{target}: is write-protected. Delete it, or write to a different path.")


def _metadata(file: gguf.GGUFFile, recipe: Recipe) -> dict[str, object]:
    """The metadata of the new file: those of the old one, and how it was made."""
    number = partial(gguf_write.Typed, ValueType.UINT32)
    metadata: dict[str, object] = without_parts(file.metadata)
    if (file_type := mix_named(recipe.mix).file_type) is not None:
        metadata["general.file_type"] = number(file_type)
    metadata["general.quantization_version"] = number(_VERSION)
    if (by := recipe.importance) is not None:
        metadata["quantize.imatrix.file"] = by.where
        metadata["quantize.imatrix.dataset"] = by.texts[-1] if by.texts else ""
        metadata["quantize.imatrix.entries_count"] = number(len(by.columns))
        metadata["quantize.imatrix.chunks_count"] = number(by.chunks)
    return metadata | dict(recipe.overrides)


def _importances(
    file: gguf.GGUFFile, chosen: Mapping[str, NewType], found: Importance | None
) -> dict[str, np.ndarray[Any, Any]]:
    """The mean squares of the columns of each matrix that gets another type, by its name."""
    if found is None:
        return {}
    shapes = {name: entry.shape for name, entry in file.entries.items() if chosen[name].type is not entry.type}
    if not found.columns.keys() & file.entries.keys():
        raise FormatError(
            f"{found.where}: it has none of the matrices of {file.where}: the importance matrix is of another model. "
            "Compute one for this model: kernmill imatrix."
        )
    weights = {name: found.weights(name, shape) for name, shape in shapes.items()}
    return {name: each for name, each in weights.items() if each is not None}


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


def _fallen(found: Mapping[str, NewType]) -> str:
    """Describe which types were replaced by others; empty if all rows are multiples of their block size."""
    changes = Counter((choice.wanted, choice.type.name) for choice in found.values())
    changes = Counter({types: count for types, count in changes.items() if types[0] != types[1]})
    shown = ", ".join(f"{kind} for {wanted} in {count}" for (wanted, kind), count in changes.items())
    return f"{changes.total()} tensors have rows that are not a multiple of the block size: {shown}" if changes else ""


def _printable_name(name: str) -> str:
    """The name of a tensor, for any terminal."""
    is_plain = name.isprintable() and name.isascii()
    return name if is_plain else quoted(name).encode("ascii", "backslashreplace").decode()


# --- one tensor ------------------------------------------------------------------------------------------------------
def _converted(
    file: gguf.GGUFFile, name: str, kind: TensorType, order: int, report: Report,
    importance: np.ndarray[Any, Any] | None,
) -> Iterator[memoryview]:  # fmt: skip
    """The bytes of a tensor in its new type."""
    entry, values = file.entries[name], file.values(name)
    shape = " x ".join(str(size) for size in entry.shape)
    count = f"[{order:4}/{len(file.entries):4}] {_printable_name(name):36} {shape:>16}"
    if kind is entry.type:
        report(f"{count}  {kind.name}")
        yield values
        return
    report(f"{count}  {entry.type.name} -> {kind.name}  {_mib(len(values))} -> {_mib(kind.nbytes(entry.shape))}")
    is_searched = kind.name in BLOCKS and BLOCKS[kind.name].looked_up
    size = max(PIECE // _SEARCHED, kind.values) if is_searched else PIECE
    step, left = size // entry.type.values * entry.type.size_bytes, kind.nbytes(entry.shape)
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
