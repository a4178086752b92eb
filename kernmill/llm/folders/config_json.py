"""class ConfigJson: values of a folder's config.json, with the defaults of its family, checked when they are read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from kernmill import FormatError

from ...formats.disk import opened
from ...formats.quoting import quoted

__all__ = ["ConfigJson", "quantized_by", "read_json"]

_MOST_BYTES = 256 << 20  # of a JSON file; the largest known tokenizer.json has 33 MB
LARGEST = 1 << 31


def read_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FormatError: it cannot be read, is too large, or is not an object.
    """
    with opened(path, "JSON") as (file, size):
        if size > _MOST_BYTES:
            raise FormatError(f"{path}: {size} bytes are too many for a JSON file of a model.")
        data = file.read()
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: is not valid JSON: {error}. Fetch it again.") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: is not a JSON object. Fetch it again.")
    return found


class ConfigJson:
    """The values of config.json; those of a text model inside a model of images come first.

    Raises:
        FormatError: on access: a value is missing or of another kind.
    """

    def __init__(self, path: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._values = read_json(path)
        inner = self._values.get("text_config")
        self._inner: dict[str, Any] = inner if isinstance(inner, dict) else {}
        self._defaults = dict(defaults or {})

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigJson:
        """The same values, with defaults for those that are missing."""
        self._defaults = dict(defaults)
        return self

    def get(self, *names: str) -> Any:
        """The first of these values that is there and not null, of the file or of the defaults; else None."""
        for values in (self._inner, self._values, self._defaults):
            for name in names:
                if (value := values.get(name)) is not None:
                    return value
        return None

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """An integer. Raises FormatError where there is none and no default."""
        value = self.get(*names)
        value = default if value is None else value
        if value is None:
            raise self.fault(f"{names[0]} is missing, and it is required")
        if type(value) is not int or not least <= value < LARGEST:
            raise self.fault(f"{names[0]} is {quoted(value)}, not an integer from {least} to {LARGEST - 1}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(*names)
        value = default if value is None else value
        if value is None:
            raise self.fault(f"{names[0]} is missing, and it is required")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.fault(f"{names[0]} is {quoted(value)}, not a finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """A bool."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.fault(f"{name} is {quoted(value)}, not true or false")
        return value

    def table(self, *names: str) -> dict[str, Any]:
        """An object; empty where there is none."""
        value = self.get(*names)
        if value is not None and not isinstance(value, dict):
            raise self.fault(f"{names[0]} is {quoted(value)}, not an object")
        return dict(value or {})

    def fault(self, text: str) -> FormatError:
        """An error about this file."""
        return FormatError(f"{self.path}: {text}. The folder does not describe its model; fetch it again.")

    @property
    def folder(self) -> str:
        """The folder of the file."""
        return os.path.dirname(self.path)

    @property
    def heads(self) -> int:
        """The number of heads of queries."""
        return self.whole("num_attention_heads", "n_head", "num_heads")

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.whole("num_key_value_heads", default=self.heads)

    @property
    def width(self) -> int:
        """The entries of a token's state."""
        return self.whole("hidden_size", "n_embd", "d_model")

    @property
    def head_width(self) -> int:
        """The entries of a head."""
        return self.whole("head_dim", "d_kv", default=max(1, self.width // self.heads))

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.whole("num_hidden_layers", "n_layer", "num_layers")

    @property
    def context(self) -> int:
        """The tokens of a text in training."""
        return self.whole("max_position_embeddings", "n_positions", "n_ctx", default=2048)


def quantized_by(config: ConfigJson) -> Any:
    """The method that the weights are quantized by, None for floats."""
    how: Any = config.get("quantization_config", "compression_config")
    return how.get("quant_method") if isinstance(how, dict) else how
