"""The metadata of a folder, as a GGUF file of its architecture has them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kernmill import FormatError

from ...formats.quoting import quoted
from .config_json import ConfigJson, read_json
from .families import FolderFamily
from .positions import rope

__all__ = ["described"]

Array = np.ndarray[Any, Any]
_POOLINGS = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3,
}  # fmt: skip


def described(config: ConfigJson, family: FolderFamily) -> tuple[dict[str, Any], dict[str, Array]]:
    """The metadata, and the tensors that come from config.json.

    Raises:
        FormatError: a value is missing, of another kind, or means what kernmill does not compute.
    """
    _check_activation(config, family)
    keys: dict[str, Any] = {
        "context_length": _context(config, family),
        "embedding_length": config.width,
        "block_count": config.layers,
        "feed_forward_length": _feed_forward(config),
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        **_epsilon(config),
    }
    tensors: dict[str, Array] = {}
    if family.has_window and config.get("sliding_window") is not None:
        keys["attention.sliding_window"] = config.whole("sliding_window")
    if family.has_rope:
        of_rope, tensors = _rope(config)
        keys |= of_rope
    keys |= family.keys(config)
    if (pooling := _pooling(config.folder)) is not None:
        keys["pooling_type"] = pooling
    metadata = {f"{family.architecture}.{key}": value for key, value in keys.items()}
    name = os.path.basename(os.path.abspath(config.folder))
    return {"general.architecture": family.architecture, "general.name": name, **metadata}, tensors


def _check_activation(config: ConfigJson, family: FolderFamily) -> None:
    found = config.get("hidden_activation", "hidden_act", "activation_function") or family.activations[0]
    if found not in family.activations:
        raise FormatError(
            f"{config.path}: the activation is {quoted(found)}, and {family.architecture} computes "
            f"{', '.join(family.activations)}. Take a standard model of this family."
        )


def _context(config: ConfigJson, family: FolderFamily) -> int:
    """The trained context. An architecture without windows computes the same up to the window's length."""
    window = config.get("sliding_window")
    has_one = window is not None and config.flag("use_sliding_window", True)
    if has_one and not family.has_window:
        return min(config.context, config.whole("sliding_window"))
    return config.context


def _feed_forward(config: ConfigJson) -> int:
    width = config.get("intermediate_size", "n_inner", "ffn_dim", "d_ff")
    return 4 * config.width if width is None else config.whole("intermediate_size", "n_inner", "ffn_dim", "d_ff")


def _epsilon(config: ConfigJson) -> dict[str, float]:
    if config.get("rms_norm_eps") is not None:
        return {"attention.layer_norm_rms_epsilon": config.number("rms_norm_eps")}
    return {
        "attention.layer_norm_epsilon": config.number(
            "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon"
        )
    }


def _rope(config: ConfigJson) -> tuple[dict[str, Any], dict[str, Array]]:
    """Rotary positions; those of layers with a window apart, where the folder says so."""
    kinds, params = config.get("layer_types"), config.table("rope_parameters")
    keys: dict[str, Any] = {}
    if isinstance(kinds, list) and "sliding_attention" in kinds:
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    if "full_attention" not in params:
        local = config.get("rope_local_base_freq")
        of_rope, tensors = rope(config)
        return {**of_rope, **({} if local is None else {"rope.freq_base_swa": float(local)}), **keys}, tensors
    if not all(isinstance(part, dict) for part in params.values()):
        raise config.fault(f"rope_parameters is {quoted(params)}, not an object of each kind of layers")
    of_rope, tensors = rope(config, params["full_attention"])
    near, _ = rope(config, params.get("sliding_attention", params["full_attention"]))
    return {**of_rope, "rope.freq_base_swa": near["rope.freq_base"], **keys}, tensors


def _pooling(folder: str) -> int | None:
    """How vectors of texts are made, as the package sentence-transformers writes it; None: it is not said."""
    path = os.path.join(folder, "1_Pooling", "config.json")
    if not os.path.isfile(path):
        return None
    values = read_json(path)
    found = [number for name, number in _POOLINGS.items() if values.get(name) is True]
    mode = values.get("pooling_mode")
    if not found and mode in ("mean", "cls", "lasttoken"):
        found = [{"mean": 1, "cls": 2, "lasttoken": 3}[mode]]
    if len(found) != 1:
        raise FormatError(f"{path}: it names {len(found)} of the ways to pool that kernmill has: must be one.")
    return found[0]
