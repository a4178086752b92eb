"""Reading the folder of a Hugging Face model: the result looks like a GGUF file, whose metadata and tensors it has.

    config.json                     sizes; `architectures` names the family
    model*.safetensors              weights; with an index where there are several files
    tokenizer.json and others       the vocabulary

Matrices that a GGUF file has in the same order are used from the mapped files. Others are made when they are read.
Tests: tests/kernmill/llm/test_folders.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernmill import FormatError, dtypes

from ...formats import gguf, gguf_write, safetensors, shards
from ...formats.gguf_made import MadeTensor, made_file
from ...formats.gguf_types import TensorType, tensor_type
from ...formats.quoting import escaped, quoted
from .changes import AS_STORED, Change, plus_one
from .config_json import ConfigJson, quantized_by
from .families import FAMILIES as ONE_BY_ONE
from .families import FolderFamily
from .metadata import described
from .parted_families import PARTED_FAMILIES
from .stored import STORED, FolderTensor, PackedTensor
from .vocabulary import vocabulary

__all__ = ["is_folder", "read", "read_any", "size_bytes"]

Array = np.ndarray[Any, Any]
_TYPES = {dtypes.float32: "F32", dtypes.float16: "F16", dtypes.bfloat16: "BF16"}
_BEGINNING = re.compile(r"(?:language_model\.)?(?:model\.|transformer\.|gpt_neox\.|bert\.)?(?:language_model\.)?")
_UNUSED = re.compile(
    r"rotary_emb\.inv_freq$|(^|\.)(attn|attention)\.(masked_)?bias$|position_ids$|(encoder|decoder)\.embed_tokens\.weight$|"
    r"^(model\.)?(vision_tower|multi_modal_projector|visual)\.|pooler\.|^cls\."
)
FAMILIES = {**ONE_BY_ONE, **PARTED_FAMILIES}
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_KEY = re.compile(r"\\\{[ne]\\\}")


def is_folder(path: object) -> bool:
    """True for the path of a folder, which is read as a model's."""
    return isinstance(path, (str, os.PathLike)) and os.path.isdir(path)


def size_bytes(path: str | os.PathLike[str]) -> int:
    """The bytes of a file, or of the weights in a folder. Raises OSError as the system."""
    if not is_folder(path):
        return os.path.getsize(path)
    return sum(one.stat().st_size for one in os.scandir(path) if one.name.endswith(".safetensors"))


def read_any(path: str | os.PathLike[str]) -> gguf.GGUFFile:
    """Read a GGUF file, or a folder. Raises FormatError as `read` and `gguf.read`."""
    return read(path) if is_folder(path) else gguf.read(path)


def read(path: str | os.PathLike[str]) -> gguf.GGUFFile:
    """Open a folder: its files are mapped, and all that they say of the model is checked.

    Raises:
        FormatError: a file is missing or damaged; the family is unknown; weights that kernmill cannot use; tensors
            that the family does not have.
    """
    where = os.fspath(path).rstrip("/") or "/"
    if not os.path.isfile(os.path.join(where, "config.json")):
        raise FormatError(
            f"{where}: is a folder without config.json. Give the folder of a Hugging Face model, or a GGUF file."
        )
    config = ConfigJson(os.path.join(where, "config.json"))
    family = _family(config)
    config.with_defaults(family.defaults)
    files, sources = _sources(where)
    metadata, more = described(config, family)
    found = _Tensors(config, family, sources)
    metadata |= vocabulary(where, config, found.rows_of_embedding)
    head = gguf.parse(memoryview(gguf_write.head(metadata, where)), where)
    head.entries.update(found.entries)
    made = {**found.made, **{name: _constant(values) for name, values in more.items()}}
    return made_file(replace(head, paths=(where, *files), parts=found.parts or (memoryview(b""),)), made)


def _family(config: ConfigJson) -> FolderFamily:
    """Raises FormatError for an unknown one, with the nearest and the list."""
    names: Any = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if isinstance(name, str) and name in FAMILIES:
        if (kind := quantized_by(config)) is not None and kind not in FAMILIES[name].packed:
            raise FormatError(
                f"{config.path}: the weights are quantized by {quoted(kind)}, which kernmill does not read. Take the "
                "folder of the model in bfloat16 or float16, or a GGUF file."
            )
        return FAMILIES[name]
    import difflib  # nothing else needs it

    close = difflib.get_close_matches(str(name)[:100], FAMILIES, 1, 0.6)
    nearest = f"The nearest is {close[0]}. " if close else ""
    raise FormatError(
        f"{config.path}: architectures names {quoted(name)}, which kernmill does not open from a folder. {nearest}It "
        f"opens {', '.join(sorted(FAMILIES))}. Others: convert the folder with llama.cpp's convert_hf_to_gguf.py."
    )


def _sources(where: str) -> tuple[list[str], list[FolderTensor]]:
    """The paths of the weights, and their tensors."""
    index, whole = (os.path.join(where, name) for name in ("model.safetensors.index.json", "model.safetensors"))
    wanted: Mapping[str, set[str] | None]
    if os.path.isfile(index):
        wanted = dict(shards.read_index(index))
    elif os.path.isfile(whole):
        wanted = {whole: None}
    else:
        others = [name for name in sorted(os.listdir(where)) if name.endswith((".bin", ".pth", ".safetensors"))]
        has = f" It has {', '.join(map(quoted, others[:3]))}." if others else ""
        raise FormatError(
            f"{where}: it has no model.safetensors and no model.safetensors.index.json.{has} Save the model again with "
            "save_pretrained, which writes them."
        )
    sources, seen = list[FolderTensor](), set[str]()
    bytes_of = dict[str, FolderTensor]()
    for part, (path, names) in enumerate(wanted.items()):
        file = safetensors.read(path, mmap=True)
        if names is not None and (lost := names - file.entries.keys()):
            raise FormatError(
                f"{path}: tensor {quoted(min(lost))} of the index is not in it. Fetch the files of one model."
            )
        for entry in file.entries.values():
            if names is not None and entry.name not in names:
                continue
            if entry.name in seen:
                raise FormatError(f"{path}: tensor {quoted(entry.name)} is in an earlier file too. Fetch them again.")
            seen.add(entry.name)
            if _UNUSED.search(entry.name):
                continue
            if entry.dtype is dtypes.uint8 and entry.name.endswith(("_blocks", "_scales")):
                kind = tensor_type("I8")
                bytes_of[entry.name] = FolderTensor(
                    entry.name, kind, entry.shape, part, entry.start, entry.stop, file.data
                )
                continue
            if entry.dtype not in _TYPES:
                raise FormatError(
                    f"{path}: tensor {quoted(entry.name)} is {entry.dtype.name}: weights must be float32, float16 or "
                    "bfloat16. Save the model in one of them."
                )
            kind = tensor_type(_TYPES[entry.dtype])
            sources.append(FolderTensor(entry.name, kind, entry.shape, part, entry.start, entry.stop, file.data))
    return list(wanted), sources + _blocks_with_scales(where, bytes_of)


def _blocks_with_scales(where: str, bytes_of: Mapping[str, FolderTensor]) -> list[FolderTensor]:
    """Blocks with their scales, as tensors. Raises FormatError where a part is missing or does not fit."""
    found = list[FolderTensor]()
    for stem in sorted({name[: -len("_blocks")] for name in bytes_of}):
        blocks, scales = (bytes_of.get(f"{stem}_{part}") for part in ("blocks", "scales"))
        if blocks is None or scales is None or blocks.shape != (*scales.shape, 16) or len(scales.shape) < 2:
            shapes = [None if one is None else one.shape for one in (blocks, scales)]
            raise FormatError(
                f"{where}: tensor {escaped(stem)}: blocks and scales of shapes {shapes[0]} and {shapes[1]} do not fit "
                "each other. Fetch the files again."
            )
        shape = (*scales.shape[:-1], 32 * scales.shape[-1])
        own = (blocks.part, blocks.start, blocks.stop, blocks.data)
        found.append(PackedTensor(stem, tensor_type("MXFP4"), shape, *own, scales))
    return found


class _Tensors:
    """The tensors of a folder under their names in a GGUF file: those that are in the files, and those to make."""

    def __init__(self, config: ConfigJson, family: FolderFamily, sources: Sequence[FolderTensor]) -> None:
        self.config, self.family = config, family
        self.entries: dict[str, gguf.GGUFEntry] = {}
        self.made: dict[str, MadeTensor] = {}
        self.parts = tuple({source.part: source.data for source in sources}.values())
        self._numbers = {part: n for n, part in enumerate(dict.fromkeys(source.part for source in sources))}
        self._patterns = [(_pattern_of(name), ours) for name, ours in family.names.items()]
        self._changes = family.changes(config)
        self.rows_of_embedding = 0
        groups: dict[str, list[tuple[int, FolderTensor]]] = {}
        ahead = config.layers if config.get("num_nextn_predict_layers") else None
        for source in sources:
            layer = _LAYER.search(source.name)
            if ahead is not None and layer is not None and int(layer[1]) >= ahead:
                continue  # it predicts further tokens, and is not computed
            names, expert = self._named(source.name)
            for name in names:
                groups.setdefault(name, []).append((expert, source))
        if config.flag("tie_word_embeddings", family.norms_by_one) and "token_embd.weight" in groups:
            groups.pop("output.weight", None)
        for name, group in groups.items():
            self._add_file(name, group)

    def _named(self, name: str) -> tuple[list[str], int]:
        """The name in a GGUF file, or several, and the number of the expert, or -1."""
        begin = _BEGINNING.match(name)
        rest = name[begin.end() :] if begin else name
        stem, _, end = rest.rpartition(".")
        end = {"gamma": "weight", "beta": "bias"}.get(end, end)
        if end not in ("weight", "bias"):  # stacked experts have neither
            stem, end = rest, "weight"
        for pattern, ours in self._patterns:
            if (match := pattern.fullmatch(stem)) is not None:
                numbers = [int(number) for number in match.groups()]
                found = [
                    _name_in_layer(one if one.endswith(".bias") else f"{one}.{end}", numbers)
                    for one in ((ours,) if isinstance(ours, str) else ours)
                ]
                return found, numbers[1] if len(numbers) > 1 else -1
        raise FormatError(
            f"{self.config.folder}: tensor {escaped(name)} is not part of {self.family.architecture}; the output would "
            "be wrong without it. Take the folder of a standard model, or a GGUF file."
        )

    def _add_file(self, name: str, group: list[tuple[int, FolderTensor]]) -> None:
        group = sorted(group, key=lambda pair: pair[0])
        first, stem = group[0][1], name.rpartition(".")[0]
        inner = stem.rpartition(".")[2] if "blk." in stem else stem
        end = name.rpartition(".")[2]
        is_stack = group[0][0] >= 0
        if not is_stack and len(group) > 1:
            raise FormatError(f"{self.config.folder}: {escaped(group[1][1].name)} is there twice, by two names.")
        if is_stack and [number for number, _ in group] != list(range(len(group))):
            raise FormatError(f"{self.config.folder}: {escaped(name)}: the numbers of its experts are not 0, 1, ..")
        if is_stack and len({(one.shape, one.type.name) for _, one in group}) > 1:
            raise FormatError(f"{self.config.folder}: {escaped(name)}: its experts differ in shape or dtype.")
        change = self._changes.get(f"{inner}.{end}", self._changes.get(inner))
        shape = first.shape if change is None else change.shape(first.shape)
        is_one = self.family.norms_by_one and "norm" in inner and end == "weight"
        if name == "token_embd.weight" and shape:
            self.rows_of_embedding = shape[0]
        is_float = len(shape) == 1 or is_one or (change is not None and change.is_float)
        kind = tensor_type("F32") if is_float else first.type
        if change is None and not is_stack and not is_one and kind is first.type:
            part = self._numbers[first.part]
            self.entries[name] = gguf.GGUFEntry(name, kind, first.shape, first.start, first.stop, part)
            return
        whole = (len(group), *shape) if is_stack else shape
        sources = tuple(source for _, source in group)
        making = _Making(name, sources, change, kind, whole, is_stack, is_one, self.config.folder)
        self.made[name] = MadeTensor(kind, whole, making.bytes, making.sample, making.release)


def _name_in_layer(name: str, numbers: Sequence[int]) -> str:
    """A name with its layer."""
    inner = name if "{n}" in name or not numbers else f"blk.{{n}}.{name}"
    return inner.format(n=numbers[0]) if numbers else inner


def _pattern_of(name: str) -> re.Pattern[str]:
    return re.compile(_KEY.sub(r"(\\d{1,6})", re.escape(name)))


@dataclass(frozen=True, slots=True)
class _Making:
    """How a tensor is computed from one in the folder, or from those of all experts, which are stacked."""

    name: str
    sources: tuple[FolderTensor, ...]
    change: Change | None
    type: TensorType
    shape: tuple[int, ...]
    is_stack: bool
    adds_one: bool
    folder: str

    def bytes(self) -> memoryview:
        """The bytes of the tensor.

        Raises:
            FormatError: sizes of config.json do not fit it.
        """
        change = self.change or AS_STORED
        is_packed = self.type.name == "MXFP4"
        row = self.type.nbytes(self.shape[-1:])
        found = (
            np.empty((*self.shape[:-1], row), np.uint8) if is_packed else np.empty(self.shape, STORED[self.type.name])
        )
        try:
            for n, source in enumerate(self.sources):
                is_float = change.is_float or self.type is not source.type
                values = change.apply(source.floats() if is_float else source.stored())
                found[n if self.is_stack else ...] = plus_one(values) if self.adds_one else values
                source.release()
        except ValueError as error:
            raise FormatError(
                f"{self.folder}: tensor {escaped(self.name)} does not fit the sizes of config.json: {error}."
            ) from None
        return memoryview(found.reshape(-1).view(np.uint8).data)

    def sample(self, size_bytes: int) -> memoryview:
        """Some bytes of its sources."""
        return memoryview(b"".join(bytes(source.raw()[:size_bytes]) for source in self.sources))

    def release(self) -> None:
        """The pages of its sources need no memory."""
        for source in self.sources:
            source.release()


def _constant(values: Array) -> MadeTensor:
    """A tensor that was computed from config.json."""
    data = memoryview(np.ascontiguousarray(values, "<f4").view(np.uint8).data)
    make: Callable[[], memoryview] = lambda: data  # noqa: E731
    return MadeTensor(tensor_type("F32"), values.shape, make, lambda size: data[:size])
