"""What a model's file says of it: its sizes, checked against its tensors before memory is allocated."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from kernmill import FormatError
from kernmill.ir import blake2b

from ..formats import gguf
from ..formats.quoting import escaped, quoted
from .arch import ARCHITECTURES, Config
from .arch.config import architecture_in

__all__ = ["check_all_used", "check_known", "config_in", "config_of", "digest_of", "kept_metadata", "naming"]

_OF_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.\w+\.weight")
_SAMPLED_BYTES = 256
_NOT_MODELS = {
    "adapter": "an adapter to a model", "imatrix": "an importance matrix", "mmproj": "the image encoder of a model",
}  # fmt: skip


def kept_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of metadata without the lists of the tokenizer, which can have 50 MB."""
    kept: dict[str, Any] = {}
    for key in metadata:
        is_list = isinstance(metadata, gguf.Metadata) and metadata.type_of(key)[1] is not None
        if key.startswith("tokenizer.") and is_list:
            continue
        value = metadata[key]
        if not (key.startswith("tokenizer.") and isinstance(value, (list, tuple))):
            kept[key] = value
    return kept


def config_of(metadata: Mapping[str, Any]) -> Config:
    """The sizes of a model from the metadata of its file.

    Raises:
        FormatError: an unknown architecture; a size that is missing or makes no sense.
    """
    name = architecture_in(metadata)
    if not name:
        raise FormatError("the file has no general.architecture, which is required. Convert it again.")
    check_known(name)
    return Config.of(metadata)


def digest_of(file: gguf.GGUFFile) -> str:
    """Return what tells the file of a model from others: of its sizes, and of the first bytes of each tensor."""
    digest = blake2b(digest_size=16)
    for key, value in sorted(kept_metadata(file.metadata).items()):
        digest.update(repr((key, value)).encode())
    for name, entry in sorted(file.entries.items()):
        digest.update(repr((name, entry.type.name, entry.shape)).encode())
        digest.update(file.sample(name, _SAMPLED_BYTES))
    return digest.hexdigest()


@contextmanager
def naming(file: gguf.GGUFFile) -> Generator[None]:
    """Prefix errors about a file with its path."""
    try:
        yield
    except FormatError as error:
        if str(error).startswith(file.where):
            raise
        raise FormatError(f"{file.where}: {error}") from error


def check_known(name: str) -> None:
    """Check that kernmill has an architecture of this name.

    Raises:
        FormatError: it has none; the nearest name is in the error.
    """
    if name not in ARCHITECTURES:
        import difflib  # nothing else needs it

        close = difflib.get_close_matches(name[:100], ARCHITECTURES, 1, 0.7)
        nearest = f"The nearest name is {close[0]}. " if close else ""
        raise FormatError(
            f"general.architecture is {quoted(name)}, which kernmill cannot run yet. {nearest}"
            f"It runs {', '.join(sorted(ARCHITECTURES))}."
        )


def config_in(file: gguf.GGUFFile) -> Config:
    """Return the configuration of the model in a file and check its number of layers, before memory is allocated.

    Raises:
        FormatError: it has no model, or one with a different number of layers; as `config_of`.
    """
    what = file.metadata.get("general.type")
    if isinstance(what, str) and what in _NOT_MODELS:
        raise FormatError(f"it is {_NOT_MODELS[what]} (general.type {what!r}), not a model. Give the model's own file.")
    if not file.entries:
        raise FormatError("it has no tensors, only metadata, such as a vocabulary. Give the model's own file.")
    config = config_of(file.metadata)
    kind = ARCHITECTURES[config.name]
    first = next(name for name in ("attn_norm.weight", "attn_output.weight") if name in kind.names_in(config, 0)[1])
    tensor = kind.named(f"blk.0.{first}")
    if tensor not in file.entries:
        raise FormatError(f"the file has no tensor {tensor}, which a {config.name} model needs.")
    begin = kind.named("blk.")
    found = (_OF_LAYER.fullmatch(name) for name in file.entries if name.startswith(begin))
    layers = max(int(one[1]) + 1 for one in found if one)
    counted = config.layers + config.ahead_layers
    if layers != counted:
        raise FormatError(
            f"{config.name}.block_count is {counted}, and blk.{layers - 1} is the last layer with tensors. "
            "The file's metadata and tensors are inconsistent."
        )
    kind.check(config, {name: entry.shape for name, entry in file.entries.items()})
    return config


def check_all_used(file: gguf.GGUFFile, used: set[str], config: Config) -> None:
    """Check that no tensor is ignored, which would silently change the output. Exceptions: only one kind of rope
    factors is read, and tensors for images, ranking or further tokens are not needed for text."""
    ahead = [f"blk.{config.layers + n}." for n in range(config.ahead_layers)]
    fine = (
        "v.",
        "mm.",
        "cls.",
        *ahead,
        *(("rope_factors_",) if any(u.startswith("rope_factors_") for u in used) else ()),
    )
    left = [entry for entry in file.entries if entry not in used and not entry.startswith(fine)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise FormatError(
            f"tensor {escaped(left[0])}{more} is not part of {config.name}; the output would be wrong. Use a file of "
            "the standard architecture."
        )
