"""`kernmill quantize` and `kernmill split`: commands that write GGUF files from others."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from kernmill.ir import FormatError, SettingError

from ..formats import gguf, gguf_write
from ..formats.gguf_split import check_targets, divided, part_paths, without_parts, write_parts
from ..llm import folders
from ..llm.merging import merged
from ..quant.importance import read
from ..quant.recipe import Recipe
from ..quantize import dry_run, mix_named, run
from . import generation, options

__all__ = ["split_file", "write_quantized"]

_PER_UNIT = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}
_MOST_TENSORS = 128  # of a part, as llama.cpp's program has it
_KINDS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": {"true": True, "false": False}.__getitem__}


def write_quantized(given: argparse.Namespace) -> int:
    """Write a GGUF file in fewer bits."""
    for name, path in (("IN", given.source), ("OUT", given.target)):
        options.check_path("quantize", path, f"Give {name}: kernmill quantize IN OUT MIX.")
    options.check_path("quantize", given.imatrix, "Give an importance matrix with --imatrix.")
    recipe = Recipe(
        given.mix, given.requantize, None if given.imatrix is None else read(given.imatrix),
        tuple(_pair(text) for text in given.tensor_type or ()), given.output_tensor_type, given.token_embedding_type,
        given.pure, given.leave_output_tensor, given.keep_split,
        dict(_override(text) for text in given.override_kv or ()),
    )  # fmt: skip
    mix = mix_named(given.mix)
    file = folders.read_any(given.source)
    given.control_vector = given.control_vector_scaled = given.control_vector_layer_range = None
    if adapters := generation.adapters("quantize", given):
        file = merged(file, adapters, keeps_types=not mix.base)
    if given.dry_run:
        dry_run(file, recipe)
    else:
        run(file, given.target, recipe)
    return 0


def _pair(text: str) -> tuple[str, str]:
    """Parse PATTERN=TYPE."""
    pattern, equals, kind = text.rpartition("=")
    if not (pattern and equals and kind):
        raise SettingError(
            f"quantize: --tensor-type {text!r}: must be a regular expression, = and a type: ffn_down=Q6_K."
        )
    return pattern, kind


def _override(text: str) -> tuple[str, Any]:
    """Parse KEY=KIND:VALUE."""
    key, _, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    try:
        if key and colon:
            return key, _KINDS[kind](value)
    except (KeyError, ValueError):
        pass
    raise SettingError(
        f"quantize: --override-kv {text!r}: must be KEY=KIND:VALUE with int, float, bool (true, false) or str: "
        "general.name=str:mine."
    )


# --- split -----------------------------------------------------------------------------------------------------------
def split_file(given: argparse.Namespace) -> int:
    """Write a file as several, or several as one."""
    for name, path in (("IN", given.model), ("OUT", given.target)):
        options.check_path("split", path, f"Give {name}: kernmill split IN OUT.")
    most = None if given.split_max_size is None else _bytes_of_part(given.split_max_size)
    if given.merge and (most or given.split_max_tensors):
        raise SettingError("split: --merge writes one file. Leave out --split-max-size and --split-max-tensors.")
    if most and given.split_max_tensors:
        raise SettingError("split: give --split-max-size or --split-max-tensors, not both.")
    file = folders.read_any(given.model)
    tensors = {
        name: gguf_write.NewTensor(entry.type, entry.shape, partial(_copied, file, name))
        for name, entry in file.entries.items()
    }
    if given.merge:
        if len(file.parts) == 1:
            raise FormatError(f"{given.model}: it is one file already. Give the first part of a split one.")
        check_targets(file, [given.target])
        gguf_write.write(given.target, without_parts(file.metadata), tensors, alignment=file.alignment)
        print(f"{given.target}: {len(tensors)} tensors of {len(file.parts)} files")
        return 0
    sizes = {
        name: -(-(entry.stop - entry.start) // file.alignment) * file.alignment for name, entry in file.entries.items()
    }
    names = divided(sizes, most, given.split_max_tensors or (None if most else _MOST_TENSORS))
    check_targets(file, part_paths(given.target, len(names)))
    parts = [{name: tensors[name] for name in each} for each in names]
    paths = write_parts(given.target, without_parts(file.metadata), parts, alignment=file.alignment)
    for path, part in zip(paths, parts, strict=True):
        print(f"{path}: {len(part)} tensors, {sum(sizes[name] for name in part):,} bytes")
    return 0


def _copied(file: gguf.GGUFFile, name: str) -> list[memoryview]:
    return [file.values(name)]


def _bytes_of_part(text: str) -> int:
    """Parse a size such as 2G: thousands, as llama.cpp's program counts."""
    found = re.fullmatch(r"(\d{1,12})([KMG]?)", text, re.IGNORECASE)
    if found is None or int(found[1]) < 1:
        raise SettingError(f"split: --split-max-size {text!r}: must be a number with K, M or G: 2G.")
    return int(found[1]) * _PER_UNIT[found[2].upper()]
