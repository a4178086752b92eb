"""Rotary positions of a folder: the metadata and tensors that GGUF files have for them.

    rope_type    in a GGUF file
    default      the base alone
    linear       rope.scaling.type, rope.scaling.factor
    yarn         the same, the original context, and how much vectors grow
    llama3       rope_freqs.weight: a divisor of each frequency
    longrope     rope_factors_short.weight and rope_factors_long.weight, and how much vectors grow
    dynamic      the base alone: it is the same up to the trained context

Source: transformers, modeling_rope_utils.py (the formulas); Peng et al., YaRN (2023); Ding et al., LongRoPE (2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernmill import FormatError

from ...formats.quoting import quoted
from .config_json import ConfigJson

__all__ = ["rope"]

Array = np.ndarray[Any, Any]
_KINDS = ("default", "dynamic", "linear", "llama3", "longrope", "su", "yarn")


def rope(config: ConfigJson, params: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
    """The keys of rotary positions, without the architecture's name, and the tensors. `params`: those of one kind of
    layers, where the folder tells them apart.

    Raises:
        FormatError: an unknown kind, or numbers that are missing or make no sense.
    """
    if params is None:
        params = config.table("rope_parameters") or config.table("rope_scaling")
    known = ConfigNumbers(config, params)
    share = known.number("partial_rotary_factor", config.number("partial_rotary_factor", "rotary_pct", default=1.0))
    size = 2 * (int(config.head_width * share) // 2)
    base = known.number("rope_theta", config.number("rope_theta", "rotary_emb_base", default=10000.0))
    keys: dict[str, Any] = {"rope.freq_base": base, "rope.dimension_count": size}
    kind = params.get("rope_type", params.get("type")) or "default"
    if kind not in _KINDS:
        raise FormatError(
            f"{config.path}: the rope type is {quoted(kind)}, which is unknown. Known: {', '.join(_KINDS)}."
        )
    if kind in ("default", "dynamic"):
        return keys, {}
    if kind == "linear":
        return {**keys, "rope.scaling.type": "linear", "rope.scaling.factor": known.number("factor")}, {}
    trained = int(
        known.number(
            "original_max_position_embeddings",
            config.number("original_max_position_embeddings", default=float(config.context)),
        )
    )
    keys["rope.scaling.original_context_length"] = trained
    if kind == "llama3":
        del keys["rope.scaling.original_context_length"]
        return keys, {"rope_freqs.weight": _divisors_of_llama3(known, base, size, trained)}
    factor = known.number("factor", config.context / max(1, trained))
    if factor < 1:
        raise config.fault(f"the rope factor is {factor:g}: must be at least 1")
    if kind == "yarn":
        return {**keys, **_yarn(known, factor)}, {}
    usual = math.sqrt(1 + math.log(factor) / math.log(max(2, trained))) if factor > 1 else 1.0
    tensors = {f"rope_factors_{name}.weight": known.numbers(f"{name}_factor", size // 2) for name in ("short", "long")}
    return {**keys, "rope.scaling.attn_factor": known.number("attention_factor", usual)}, tensors


class ConfigNumbers:
    """The numbers of a table in config.json."""

    def __init__(self, config: ConfigJson, values: Mapping[str, Any]) -> None:
        self._config, self._values = config, values

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value: Any = self._values.get(name)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self._config.fault(f"{name} of the rope is {quoted(value)}, not a positive number")
        return float(value)

    def numbers(self, name: str, count: int) -> Array:
        """A list of positive numbers. Shapes: (count,). Dtypes: float32."""
        values = self._values.get(name)
        if (
            not isinstance(values, list)
            or len(values) != count
            or any(type(one) not in (int, float) or not 0 < one < math.inf for one in values)
        ):
            raise self._config.fault(f"{name} of the rope is {quoted(values)}, not a list of {count} positive numbers")
        return np.array(values, np.float32)

    def has(self, name: str) -> bool:
        """True if there is such a value."""
        return self._values.get(name) is not None


def _yarn(known: ConfigNumbers, factor: float) -> dict[str, Any]:
    """Vectors grow by 1 + 0.1 ln(factor) in a GGUF file, times `attn_factor`."""

    def growth(scale: float) -> float:
        return 1 + 0.1 * scale * math.log(factor)

    wanted = growth(1.0)
    if known.has("attention_factor"):
        wanted = known.number("attention_factor")
    elif known.has("mscale") and known.has("mscale_all_dim"):
        wanted = growth(known.number("mscale")) / growth(known.number("mscale_all_dim"))
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.attn_factor": wanted / growth(1.0),
        "rope.scaling.yarn_beta_fast": known.number("beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": known.number("beta_slow", 1.0),
    }


def _divisors_of_llama3(known: ConfigNumbers, base: float, size: int, trained: int) -> Array:
    """Long waves are slowed down by the factor, short ones stay, with a ramp between. Shapes: (size / 2,)."""
    factor, low, high = (known.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    waves = 2 * math.pi * base ** (np.arange(0, size, 2) / max(1, size))
    share = np.clip((trained / waves - low) / max(1e-9, high - low), 0, 1)  # 1: a short wave
    return np.asarray(1 / ((1 - share) / factor + share), np.float32)
