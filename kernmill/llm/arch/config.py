"""class Config: the sizes and numbers of a model, read from the metadata of a GGUF file and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernmill import FormatError

from ...formats.quoting import quoted
from .part import RankPart

__all__ = ["POOLINGS", "Config", "Experts", "Rope", "Ssm", "architecture_in"]

GATINGS = ("", "softmax", "sigmoid", "chosen")  # <architecture>.expert_gating_func 1, 2, 3
POOLINGS = ("none", "mean", "cls", "last", "rank")  # <architecture>.pooling_type 0, 1, ..

LARGEST = 1 << 31  # of any size
_SCALES = 1e-6, 1e6  # of factors on scores and logits, whose products fit float32
_FACTORS = 1e-3, 1e6  # of a longer context
_GROWTH = 0.01, 100.0  # of rotated vectors; their products with each other grow by the square
_STATES = ("ssm.conv_kernel", "shortconv.l_cache", "wkv.head_size")  # keys of models with recurrent layers
_BASES = 1.0, 1e30  # of rotations that slow down


@dataclass(frozen=True)
class Rope:
    """Rotary positions. `size`: entries of a head that are rotated; `scaling`: none, linear, yarn or longrope.

    `local_base`: of layers with a sliding window, 0 where the file does not say.
    """

    size: int
    base: float
    local_base: float
    scaling: str
    factor: float  # how much longer than in training the context may be
    trained_context: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    local_size: int = 0  # of layers with a sliding window; 0: the same
    log_multiplier: float = 0.0  # of the growth of vectors or scores with the logarithm of the factor


@dataclass(frozen=True)
class Experts:
    """The mixtures of experts of a model; of a dense one `count` is 0.

    `gating`: softmax, sigmoid, or chosen (a softmax over the chosen experts); "": the file does not say. `is_normed`:
    the weights of a token's experts are divided by their sum; None: the file does not say.
    """

    count: int = 0
    used: int = 0  # by a token
    width: int = 0  # of one expert
    shared_width: int = 0  # of the experts that all tokens use; 0: none
    gating: str = ""
    is_normed: bool | None = None
    scale: float = 1.0  # of the weights
    groups: int = 1
    groups_used: int = 1
    dense_layers: int = 0  # the first ones have none
    step: int = 1  # the last of every `step` layers has experts
    here: int = 0  # of a model over ranks: the experts that this one has; 0: all

    def are_in(self, layer: int) -> bool:
        """True if a layer has experts instead of one feed-forward part."""
        return self.count > 0 and layer >= self.dense_layers and (layer + 1) % self.step == 0


@dataclass(frozen=True)
class Latent:
    """Latent attention: one vector of `rank` values for the keys and values of all heads.

    `key_width` and `value_width` are those of a head, 0 where the file does not say; `query_rank` 0: one matrix.
    """

    rank: int
    query_rank: int
    key_width: int
    value_width: int


@dataclass(frozen=True)
class Ssm:
    """The sizes of recurrent layers, 0 where the file has none.

    `taps`: tokens that a convolution sees. `inner`: values of a token between its matrices. `state`: values that each
    of them, or each head, keeps. `rank`: of time steps; of Mamba 2 and delta nets the number of heads.
    """

    taps: int = 0
    inner: int = 0
    state: int = 0
    rank: int = 0
    groups: int = 0
    is_normed: bool = False  # dt_b_c_rms


@dataclass(frozen=True)
class Wkv:
    """The sizes of RWKV, 0 where the file has none. Ranks: of mixtures, decays, rates, values and gates."""

    head_size: int = 0
    mix_rank: int = 0
    decay_rank: int = 0
    rate_rank: int = 0
    value_rank: int = 0
    gate_rank: int = 0
    rescale_every: int = 0  # layers


@dataclass(frozen=True)
class OfLayer:
    """Sizes that may differ from layer to layer; 0: a layer without such a part."""

    heads: int
    kv_heads: int
    feed_forward: int


@dataclass(frozen=True)
class Config:
    """The configuration of a model. Sizes are numbers of entries; `window` 0 means that all layers attend to
    everything.

    `window_pattern` n: of every n layers the last one attends to everything; 0: not in the file.
    """

    name: str
    context: int
    width: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    epsilon: float
    rope: Rope
    window: int
    window_pattern: int | tuple[bool, ...]
    attention_cap: float  # 0: none
    logit_cap: float
    attention_scale: float  # 0: by the width of a head
    pooling: str = "mean"  # one of POOLINGS; the default of `embed` if the file does not name one
    embedding_scale: float = 0.0  # factors of x, of each part, of the logits; 0: none
    residual_scale: float = 0.0
    logit_scale: float = 0.0
    local_widths: tuple[int, int] = (0, 0)  # of keys and values in layers with a window; 0: the same
    shared_layers: int = 0  # the last ones, which read the keys and values of earlier layers
    layer_input: int = 0  # width of what layers take in addition to x
    buckets: int = 0  # of distances
    temperature_scale: float = 0.0  # of queries with the logarithm of the position; 0: none
    clamp_kqv: float = 0.0  # of queries, keys and values; 0: none
    largest_slope: float = 0.0  # max_alibi_bias
    xielu: tuple[tuple[float, ...], ...] = ()  # alpha_n, alpha_p, beta, eps: one of each, or for each layer
    is_parallel: bool = True  # use_parallel_residual
    is_rotated: bool = True  # rope.scaling.finetuned
    activation: str = ""  # hidden_activation; "": the architecture's own
    is_causal: bool = True  # tokens attend to earlier ones only
    experts: Experts = Experts()
    latent: Latent | None = None
    ssm: Ssm = Ssm()
    wkv: Wkv = Wkv()
    recurrent_layers: int | tuple[bool, ...] = 0  # all but every n-th, or for each layer; 0: the file does not say
    of_layers: tuple[OfLayer, ...] = ()  # the sizes of each layer where they differ; the others are the largest
    ahead_layers: int = 0  # the last ones of a file, which predict further tokens and are not computed
    encoder_layers: int = 0  # of a model with a decoder too, whose layers are counted by `layers`
    start_id: int = 0  # the token that a decoder begins with
    homes: tuple[str, ...] = ()  # of a model over several devices: those of the layers, then that of the output
    cache_homes: tuple[str, ...] = ()  # those of the layers' keys and values
    part: RankPart | None = None  # of a model over ranks: what this one computes

    @property
    def own_layers(self) -> range:
        """The layers that this rank computes."""
        return range(self.layers) if self.part is None else range(self.part.first, self.part.stop)

    @property
    def sizes(self) -> str:
        """The sizes that determine the shapes of tensors, under their names in a file."""
        e = self.experts
        experts = f", expert_count {e.count}, expert_feed_forward_length {e.width}" if e.count else ""
        return (
            f"embedding_length {self.width}, feed_forward_length {self.feed_forward}, "
            f"attention.head_count {self.heads}, attention.head_count_kv {self.kv_heads}, "
            f"attention.key_length {self.head_width}, attention.value_length {self.value_width}{experts}"
        )

    def of_layer(self, n: int) -> Config:
        """The configuration with the sizes of one layer."""
        sizes = vars(self.of_layers[n]) if self.of_layers else {}
        if self.local_widths[0] and isinstance(self.window_pattern, tuple) and self.window_pattern[n]:
            sizes = {**sizes, "head_width": self.local_widths[0], "value_width": self.local_widths[1]}
        return replace(self, **sizes) if sizes else self

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Config:
        """From metadata.

        Raises:
            FormatError: a key is missing or makes no sense; it is named.
        """
        keys = _Keys(metadata)
        width, of_layers = keys.size("embedding_length"), keys.of_layers()
        heads, kv_heads = (max(getattr(each, size) for each in of_layers) for size in ("heads", "kv_heads"))
        if heads > width and keys.get("attention.key_length") is None:
            raise FormatError(f"{keys.name}.attention.head_count: {heads} heads do not fit an embedding of {width}.")
        head_width = keys.size("attention.key_length", width // max(1, heads), least=keys.least)
        return cls(
            name=keys.name,
            context=keys.size("context_length"),
            width=width,
            layers=keys.size("decoder_block_count", keys.layers()),
            encoder_layers=keys.layers(),
            start_id=keys.size("decoder_start_token_id", 0, least=0),
            ahead_layers=keys.size("nextn_predict_layers", 0, least=0),
            feed_forward=max(each.feed_forward for each in of_layers),
            of_layers=() if len(set(of_layers)) == 1 else tuple(of_layers),
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            value_width=keys.size("attention.value_length", head_width, least=keys.least),
            epsilon=keys.epsilon(),
            rope=_rope(keys, head_width),
            window=keys.size("attention.sliding_window", 0, least=0),
            window_pattern=keys.pattern("attention.sliding_window_pattern", keys.size("block_count")),
            attention_cap=keys.number("attn_logit_softcapping", 0.0, within=_SCALES),
            logit_cap=keys.number("final_logit_softcapping", 0.0, within=_SCALES),
            attention_scale=keys.number("attention.scale", 0.0, within=_SCALES),
            pooling=keys.pooling(),
            embedding_scale=keys.number("embedding_scale", 0.0, within=_SCALES),
            residual_scale=keys.number("residual_scale", 0.0, within=_SCALES),
            logit_scale=keys.number("logit_scale", 0.0, within=_SCALES),
            local_widths=_local_widths(keys),
            shared_layers=keys.size("attention.shared_kv_layers", 0, least=0),
            layer_input=keys.size("embedding_length_per_layer_input", 0, least=0),
            buckets=keys.size("attention.relative_buckets_count", 0, least=0),
            temperature_scale=keys.number("attention.temperature_scale", 0.0, within=_SCALES),
            clamp_kqv=keys.number("attention.clamp_kqv", 0.0, within=_SCALES),
            largest_slope=keys.number("attention.max_alibi_bias", 0.0, within=_SCALES),
            xielu=_xielu(metadata, keys.size("block_count")),
            is_parallel=keys.flag("use_parallel_residual", True),
            is_rotated=keys.flag("rope.scaling.finetuned", True),
            activation=keys.text("hidden_activation", ""),
            is_causal=keys.flag("attention.causal", True),
            experts=_experts(keys),
            latent=_latent(keys),
            ssm=_ssm(keys),
            wkv=_wkv(keys),
            recurrent_layers=keys.pattern("attention.recurrent_layers", keys.size("block_count"))
            or keys.size("full_attention_interval", 0, least=0),
        )


def architecture_in(metadata: Mapping[str, Any]) -> str:
    """Return the architecture that the metadata name, or an empty string.

    Raises:
        FormatError: its name is not a string.
    """
    name = metadata.get("general.architecture", "")
    if not isinstance(name, str):
        raise FormatError(
            f"general.architecture is {quoted(name)}, not the name of an architecture. Convert the file again."
        )
    return name


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0 and not isinstance(value, str)


class _Keys:
    """The keys of one architecture."""

    def __init__(self, metadata: Mapping[str, Any], name: str | None = None) -> None:
        self._metadata, self.name = metadata, architecture_in(metadata) if name is None else name
        self.least = 1 if all(self.get(state) is None for state in _STATES) else 0  # heads of a layer

    def get(self, key: str) -> Any:
        """Return a Python value, also for NumPy scalars; a list is unchanged, however long."""
        value: Any = self._metadata.get(f"{self.name}.{key}")
        return value.tolist() if hasattr(value, "tolist") and not _is_list(value) else value

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise FormatError(f"{self.name}.{key} is {quoted(value)}, not a string.")
        return value

    def number(self, key: str, default: float | None = None, *, within: tuple[float, float] | None = None) -> float:
        """Return a finite number, 0 or more; 0 if it may mean none, otherwise `within` the range that a model can
        compute with."""
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise FormatError(f"the file has no {self.name}.{key}, which is required.")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise FormatError(f"{self.name}.{key} is {quoted(value)}, not a finite number >= 0.")
        if within is not None and value != default and not within[0] <= value <= within[1]:
            raise FormatError(
                f"{self.name}.{key} is {value:g}, out of range [{within[0]:g}, {within[1]:g}]: the model would "
                "produce NaN or constant output. The file is damaged, or was written by a faulty "
                "converter."
            )
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A bool."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise FormatError(f"{self.name}.{key} is {quoted(value)}, not a bool.")
        return value

    def epsilon(self) -> float:
        """The epsilon of the norms: of RMS norms, or of layer norms."""
        key = "attention.layer_norm_epsilon"
        if self.get("attention.layer_norm_rms_epsilon") is not None or self.get(key) is None:
            key = "attention.layer_norm_rms_epsilon"
        return self.number(key, within=(0, 1))

    def layers(self) -> int:
        """The layers of the model, without those that predict further tokens."""
        count, ahead = self.size("block_count"), self.size("nextn_predict_layers", 0, least=0)
        if ahead >= count:
            raise FormatError(f"{self.name}.nextn_predict_layers is {ahead}: must be less than the {count} layers.")
        return count - ahead

    def feed_forwards(self) -> list[int]:
        """The width of each layer's feed-forward part; of a model that has nothing but experts theirs."""
        has_experts = self.get("feed_forward_length") is None and self.get("expert_feed_forward_length") is not None
        return self.sizes("expert_feed_forward_length" if has_experts else "feed_forward_length")

    def of_layers(self) -> list[OfLayer]:
        """The sizes that may differ from layer to layer; one if no key has a list."""
        heads = self.sizes("attention.head_count")
        parts = [heads, self.sizes("attention.head_count_kv", heads), self.feed_forwards()]
        count = max(map(len, parts))
        wide = [part if len(part) == count else part * count for part in parts]
        layers = [OfLayer(*sizes) for sizes in zip(*wide, strict=True)]
        wrong = next((one for one in layers if one.kv_heads and (one.heads % one.kv_heads or not one.heads)), None)
        if wrong is not None:
            raise FormatError(
                f"{self.name}.attention.head_count_kv: {wrong.kv_heads} does not divide {wrong.heads} heads."
            )
        return layers[: self.layers()]

    def sizes(self, key: str, default: list[int] | None = None) -> list[int]:
        """An integer for each layer from a list, or one; 0 only in models with recurrent layers."""
        value = self.get(key)
        if not _is_list(value):
            return default if value is None and default is not None else [self.size(key, least=self.least)]
        found = [_Keys({f"{self.name}.{key}": one}, self.name).size(key, least=self.least)
                 for one in self._of_layers(key, value, self.size("block_count"))]  # fmt: skip
        return found[:1] if len(set(found)) == 1 else found

    def choice(self, key: str, names: Sequence[str], default: int, first: int = 0) -> str:
        """One of some names by its number."""
        value = self.get(key)
        value = default if value is None else value
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not (value == default or first <= value < len(names))
        ):
            kinds = ", ".join(f"{n} ({kind})" for n, kind in enumerate(names) if n >= first)
            raise FormatError(f"{self.name}.{key} is {quoted(value)}: must be one of {kinds}.")
        return names[value]

    def pooling(self) -> str:
        """How states become a vector: one of POOLINGS."""
        return self.choice("pooling_type", POOLINGS, POOLINGS.index("mean"))

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer; a list of one number for each layer is accepted if all are equal."""
        value = self.get(key)
        if _is_list(value) and key != "block_count":
            values = self._of_layers(key, value, self.size("block_count"))
            if any(entry != values[0] for entry in values):
                raise FormatError(f"{self.name}.{key} differs from layer to layer, which is not supported yet.")
            value = values[0]
        value = default if value is None else value
        if value is None:
            raise FormatError(f"the file has no {self.name}.{key}, which is required.")
        if (
            isinstance(value, bool)
            or _is_list(value)
            or not hasattr(value, "__index__")
            or not least <= int(value) < LARGEST
        ):
            raise FormatError(f"{self.name}.{key} is {quoted(value)}, not an integer from {least} to {LARGEST - 1}.")
        return int(value)

    def pattern(self, key: str, layers: int) -> int | tuple[bool, ...]:
        """Return a period, or for each layer whether it has a window."""
        value = self.get(key)
        return tuple(map(bool, self._of_layers(key, value, layers))) if _is_list(value) else self.size(key, 0, least=0)

    def _of_layers(self, key: str, values: Any, layers: int) -> list[Any]:
        """A list with an entry for each layer."""
        if len(values) != layers:
            raise FormatError(f"{self.name}.{key} has {len(values)} entries for {layers} layers.")
        found: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
        return found


def _rope(keys: _Keys, head_width: int) -> Rope:
    size = keys.size("rope.dimension_count", head_width, least=0)
    if size % 2 or size > head_width:
        raise FormatError(f"{keys.name}.rope.dimension_count is {size}: not even, or more than {head_width} a head.")
    key = "rope.scaling.factor" if keys.get("rope.scaling.factor") is not None else "rope.scale_linear"  # in old files
    factor = keys.number(key, 0.0, within=_FACTORS) or 1.0
    scaling = keys.text("rope.scaling.type", "") or ("none" if factor == 1 else "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise FormatError(
            f"{keys.name}.rope.scaling.type is {quoted(scaling)}: not one of none, linear, yarn, longrope."
        )
    base = keys.number("rope.freq_base", 10000.0)
    if base < 1:
        raise FormatError(f"{keys.name}.rope.freq_base is {base:g}: must be at least 1.")
    return Rope(
        size=size,
        base=base,
        local_base=keys.number("rope.freq_base_swa", 0.0, within=_BASES),
        local_size=keys.size("rope.dimension_count_swa", 0, least=0),
        scaling=scaling,
        factor=factor,
        trained_context=keys.size("rope.scaling.original_context_length", keys.size("context_length")),
        attention_factor=keys.number("rope.scaling.attn_factor", 1.0, within=_GROWTH),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, within=(0, 1e6)),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, within=(0, 1e6)),
        log_multiplier=keys.number("rope.scaling.yarn_log_multiplier", 0.0, within=(0, 100)),
    )


def _latent(keys: _Keys) -> Latent | None:
    rank = keys.size("attention.kv_lora_rank", 0, least=0)
    if not rank:
        return None
    return Latent(
        rank=rank,
        query_rank=keys.size("attention.q_lora_rank", 0, least=0),
        key_width=keys.size("attention.key_length_mla", 0, least=0),
        value_width=keys.size("attention.value_length_mla", keys.size("attention.key_length_mla", 0, least=0), least=0),
    )


def _local_widths(keys: _Keys) -> tuple[int, int]:
    width = keys.size("attention.key_length_swa", 0, least=0)
    return width, keys.size("attention.value_length_swa", width, least=0)


def _xielu(metadata: Mapping[str, Any], layers: int) -> tuple[tuple[float, ...], ...]:
    """The numbers of the activation xIELU; their keys do not begin with the architecture."""
    names = [f"xielu.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")]
    if not any(name in metadata for name in names):
        return ()
    found: list[tuple[float, ...]] = []
    for name in names:
        value: Any = metadata.get(name)
        numbers: list[Any] = [*value] if _is_list(value) else [value]
        are_numbers = all(hasattr(number, "__float__") and math.isfinite(number) for number in numbers)
        if len(numbers) not in (1, layers) or not are_numbers:
            raise FormatError(f"{name} is {quoted(value)}: must be a number, or one for each of {layers} layers.")
        found.append(tuple(map(float, numbers)))
    return tuple(found)


def _ssm(keys: _Keys) -> Ssm:
    return Ssm(
        taps=keys.size("shortconv.l_cache", 0, least=0) or keys.size("ssm.conv_kernel", 0, least=0),
        inner=keys.size("ssm.inner_size", 0, least=0),
        state=keys.size("ssm.state_size", 0, least=0),
        rank=keys.size("ssm.time_step_rank", 0, least=0),
        groups=keys.size("ssm.group_count", 0, least=0),
        is_normed=keys.flag("ssm.dt_b_c_rms", False),
    )


def _wkv(keys: _Keys) -> Wkv:
    def size(key: str) -> int:
        return keys.size(key, 0, least=0)

    return Wkv(
        head_size=size("wkv.head_size"),
        mix_rank=size("time_mix_extra_dim"),
        decay_rank=size("time_decay_extra_dim") or size("attention.decay_lora_rank"),
        rate_rank=size("attention.iclr_lora_rank"),
        value_rank=size("attention.value_residual_mix_lora_rank"),
        gate_rank=size("attention.gate_lora_rank"),
        rescale_every=size("rescale_every_n_layers"),
    )


def _experts(keys: _Keys) -> Experts:
    """Raises FormatError where counts do not fit each other."""
    count = keys.size("expert_count", 0, least=0)
    if not count:
        return Experts()
    used, groups = keys.size("expert_used_count"), keys.size("expert_group_count", 1, least=0) or 1
    groups_used = keys.size("expert_group_used_count", groups, least=0) or groups
    if used > count:
        raise FormatError(f"{keys.name}.expert_used_count is {used}: a token cannot use more than the {count} experts.")
    if count % groups or groups_used > groups or used > count // groups * groups_used:
        raise FormatError(
            f"{keys.name}: {groups_used} of {groups} groups of {count} experts, {used} of which a token uses: groups "
            "are equally large, and those that are used have as many experts. Convert the file again."
        )
    width = keys.size("expert_feed_forward_length", max(keys.feed_forwards()))
    shared = keys.size("expert_shared_count", 0, least=0)
    return Experts(
        count=count,
        used=used,
        width=width,
        shared_width=keys.size("expert_shared_feed_forward_length", shared * width, least=0),
        gating=keys.choice("expert_gating_func", GATINGS, 0, first=1),
        is_normed=None if keys.get("expert_weights_norm") is None else keys.flag("expert_weights_norm", True),
        scale=keys.number("expert_weights_scale", 0.0, within=_SCALES) or 1.0,
        groups=groups,
        groups_used=groups_used,
        dense_layers=keys.size("leading_dense_block_count", 0, least=0),
        step=keys.size("interleave_moe_layer_step", 0, least=0) or keys.size("moe_every_n_layers", 0, least=0) or 1,
    )
