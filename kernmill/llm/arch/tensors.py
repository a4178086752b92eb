"""class LayerTensors: the tensors of a model by their names in a GGUF file, checked against its sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kernmill import FormatError, Tensor

from .config import Config
from .experts import expert_shapes
from .pooling import Pooling
from .weight import Weight, join, layout, nbytes

__all__ = ["LayerTensors", "Weights", "is_plain"]

Weights = Callable[[str], Weight | None]  # the tensor of a name, or None where the file has none
ATTENTION, GATED = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")
DENSE = ("ffn_gate", "ffn_up", "ffn_down")  # a layer has these, or experts
EXPERTS, SHARED = ("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_shexp", "ffn_up_shexp")
_OF_LAYER = re.compile(r"(?:enc\.)?blk\.(\d+)\.")
_PLAIN = re.compile(
    r"(^|\.)(ssm_(a|d|norm\.weight|conv1d\.weight)|shortconv\.conv\.weight|attn_rel_b\.weight"
    r"|(time|channel)_mix_(lerp_\w|lerp_fused|first|decay_w[12]|[wavg][012]|r_k)\.weight)$"
)


def is_plain(name: str) -> bool:
    """True for a tensor that is not a matrix of products, whatever its shape: it stays as it is in the file."""
    return name.endswith(".bias") or _PLAIN.search(name) is not None


def _check_fits(c: Config, name: str, shape: Sequence[int], wanted: Sequence[int | None]) -> None:
    """Check that a tensor has the shape that the metadata require; None stands for any size."""
    if len(shape) != len(wanted) or any(size not in (None, own) for size, own in zip(wanted, shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        raise FormatError(
            f"{name} has shape {tuple(shape)}, and a {c.name} model of these sizes needs ({sizes}). The file's "
            f"metadata and tensors are inconsistent: {c.sizes}."
        )


class LayerTensors:
    """The tensors that layers of a model can have and must have. A subclass says what is different in it."""

    config: Config
    pooling: Pooling
    embedding: Weight
    output: Weight
    ends: dict[str, Tensor]
    matrices: list[dict[str, Weight]]
    vectors: list[dict[str, Tensor]]
    _weights: Weights

    has_gate = True  # the feed-forward part multiplies `ffn_up` with an activated `ffn_gate`
    mixes = "never"  # whether layers have experts: never, sometimes (if a file says so), always
    gating, is_normed = "softmax", True  # of experts, where the file does not say: see config.Experts
    needs_always = (
        "attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
        "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
    )  # fmt: skip
    needs_besides: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()  # of `needs_always`, tensors that these models do not have
    may_lack: tuple[str, ...] = ()  # of `needs_always`, tensors that some of these models have
    fused: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("attn_qkv", ATTENTION), ("ffn_gate_up_exps", EXPERTS)
    )  # fmt: skip
    same_x: tuple[tuple[str, ...], ...] = (ATTENTION, GATED, SHARED)  # matrices that become one where they can

    @classmethod
    def named(cls, name: str) -> str:
        """Return the name of a tensor in files of this architecture."""
        return name

    def found(self, name: str, *shape: int | None) -> Weight | None:
        """Return the tensor of this name, or None; None in a shape stands for any size."""
        weight = self._weights(name)
        if weight is None:
            return None
        if isinstance(weight, Tensor) and not weight.dtype.is_float:
            raise FormatError(
                f"{name} is {weight.dtype.name}: weights must be floats or quantized. Convert the file again."
            )
        if (len(shape) == 1 or is_plain(name)) and not isinstance(weight, Tensor):
            raise FormatError(f"{name} is quantized: norms and biases must be floats. Convert the file again.")
        _check_fits(self.config, name, weight.shape, shape)
        return weight

    def needed(self, name: str, *shape: int | None) -> Weight:
        """A tensor that the model needs."""
        weight = self.found(name, *shape)
        if weight is None:
            raise FormatError(f"the file has no tensor {self.named(name)}, which a {self.config.name} model needs.")
        return weight

    def vector(self, name: str, *shape: int | None) -> Tensor:
        """A vector that the model needs."""
        weight = self.needed(name, *shape)
        assert isinstance(weight, Tensor)
        return weight

    def add_end(self, name: str, *shape: int | None) -> None:
        """Take a vector of the whole model, if the file has it."""
        if isinstance(found := self.found(name, *shape), Tensor):
            self.ends[name] = found

    @property
    def bytes_by_layout(self) -> dict[tuple[str, str], int]:
        """Bytes of all weights, each counted once, by device and by the layout of rows: plain or interleaved."""
        weights: list[Weight] = [self.embedding, self.output, *self.ends.values(), *self.pooling.weights]
        for matrices, vectors in zip(self.matrices, self.vectors, strict=True):
            weights += [*matrices.values(), *vectors.values()]
        found: dict[tuple[str, str], int] = {}
        for weight in {id(weight): weight for weight in weights}.values():
            key = weight.device, layout(weight)
            found[key] = found.get(key, 0) + nbytes(weight)
        return found

    @classmethod
    def needed_names(cls) -> tuple[str, ...]:
        """The tensors that a layer must have, by their names in the layer."""
        without = {*cls.lacks, *cls.may_lack}
        return tuple(name for name in (*cls.needs_always, *cls.needs_besides) if name not in without)

    @classmethod
    def _with_experts(cls, c: Config) -> Config:
        """The sizes with what the architecture says about experts where the file says nothing."""
        e = c.experts
        if e.count and cls.mixes == "never":
            raise FormatError(
                f"{c.name}.expert_count is {e.count}, and models of this architecture have no experts. Convert the "
                "file again."
            )
        if not e.count and cls.mixes == "always":
            raise FormatError(f"the file has no {c.name}.expert_count, which is required.")
        is_normed = cls.is_normed if e.is_normed is None else e.is_normed
        return replace(c, experts=replace(e, gating=e.gating or cls.gating, is_normed=is_normed))

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The tensors that a layer can have, with their shapes, and those that it must have."""
        c, needed = c.of_layer(n), set(cls.needed_names())
        shapes, of_experts = cls.shapes(c), expert_shapes(c)
        if not c.experts.are_in(n):
            return shapes, needed
        dense = {name for name in shapes if name.split(".")[0] in DENSE}
        of_expert = EXPERTS if cls.has_gate else EXPERTS[1:]
        needed = needed - dense | {f"{name}.weight" for name in ("ffn_gate_inp", "ffn_down_exps", *of_expert)}
        if c.experts.shared_width:
            needed |= {f"{name}.weight" for name in ("ffn_down_shexp", *(SHARED if cls.has_gate else SHARED[1:]))}
        return {name: shape for name, shape in shapes.items() if name not in dense} | of_experts, needed

    @classmethod
    def whole_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """More tensors that the model must have in addition to its layers."""
        return {}

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """Every tensor that a layer can have, by its name in the layer."""
        queries, keys, values = c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.value_width
        return {
            "attn_norm.weight": (c.width,),
            "attn_norm.bias": (c.width,),
            "attn_norm_2.weight": (c.width,),
            "attn_norm_2.bias": (c.width,),
            "attn_q.weight": (queries, c.width),
            "attn_k.weight": (keys, c.width),
            "attn_v.weight": (values, c.width),
            "attn_q.bias": (queries,),
            "attn_k.bias": (keys,),
            "attn_v.bias": (values,),
            "attn_q_norm.weight": (c.head_width,),
            "attn_k_norm.weight": (c.head_width,),
            "attn_output.weight": (c.width, c.heads * c.value_width),
            "attn_output.bias": (c.width,),
            "post_attention_norm.weight": (c.width,),
            "ffn_norm.weight": (c.width,),
            "ffn_norm.bias": (c.width,),
            "ffn_gate.weight": (c.feed_forward, c.width),
            "ffn_up.weight": (c.feed_forward, c.width),
            "ffn_down.weight": (c.width, c.feed_forward),
            "ffn_gate.bias": (c.feed_forward,),
            "ffn_up.bias": (c.feed_forward,),
            "ffn_down.bias": (c.width,),
            "post_ffw_norm.weight": (c.width,),
        }

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that the sizes fit each other.

        Raises:
            FormatError: they do not.
        """

    @classmethod
    def check(cls, c: Config, shapes: Mapping[str, Sequence[int]]) -> None:
        """Check that the sizes match the tensors of a file, before memory is allocated for them.

        Raises:
            FormatError: the shape of a tensor differs from the metadata, or these do not fit each other.
        """
        cls.check_sizes(c)
        whole = {"token_embd.weight": (None, c.width), "output.weight": (None, c.width)}
        layers: dict[int, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            of = _OF_LAYER.match(name)
            if of is None or int(of[1]) >= c.layers:
                _check_fits(c, name, shape, whole.get(name) or shape)
                continue
            n = int(of[1])
            if n not in layers:
                layers[n] = cls._with_joint(c, n, shapes)
            _check_fits(c.of_layer(n), name, shape, layers[n].get(name[of.end() :]) or shape)

    @classmethod
    def _with_joint(cls, c: Config, n: int, present: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's tensors, also of those that are several in one."""
        layer = cls.names_in(c, n)[0]
        for joint, parts in cls.fused:
            is_split = any(_OF_LAYER.sub("", name) == f"{parts[0]}.weight" for name in present)
            if f"{parts[0]}.weight" in layer and not (joint in parts and is_split):
                *before, _, width = layer[f"{parts[0]}.weight"]
                rows = sum(layer[f"{part}.weight"][-2] for part in parts)
                layer |= {f"{joint}.weight": (*before, rows, width), f"{joint}.bias": (*before, rows)}
        return layer

    def names_of(self, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """`names_in` of this file, where its tensors say more than its metadata."""
        return self.names_in(self.config, n)

    def joins(self, n: int) -> Sequence[tuple[str, ...]]:
        """Return the matrices of a layer that become one where they can."""
        return self.same_x

    def add_layer(self, n: int) -> None:
        """Take the tensors that a layer has, by their names in it."""
        shapes, wanted = self.names_of(n)
        matrices: dict[str, Weight] = {}
        vectors: dict[str, Tensor] = {}
        for joint, parts in self.fused:
            whole = self._weights(f"blk.{n}.{joint}.weight") if joint in parts else None
            is_split = whole is not None and whole.shape[-2] == shapes.get(f"{joint}.weight", (0, 0))[-2]
            if f"{parts[0]}.weight" not in shapes or is_split:
                continue
            *before, _, width = shapes[f"{parts[0]}.weight"]
            rows = [shapes[f"{part}.weight"][-2] for part in parts]
            weight = self.found(f"blk.{n}.{joint}.weight", *before, sum(rows), width)
            if weight is None:
                continue
            matrices[f"{parts[0]}.weight"] = weight  # `products` splits its result
            bias = self.found(f"blk.{n}.{joint}.bias", *before, sum(rows))
            for part, size in zip(parts, rows, strict=True):
                del shapes[f"{part}.weight"], shapes[f"{part}.bias"]
                if isinstance(bias, Tensor):
                    vectors[f"{part}.bias"], bias = bias[..., :size].contiguous().realize(), bias[..., size:]
        for name, shape in shapes.items():
            if name in self.lacks:
                continue
            weight = (self.needed if name in wanted else self.found)(f"blk.{n}.{name}", *shape)
            if isinstance(weight, Tensor) and (len(shape) == 1 or is_plain(name)):
                vectors[name] = weight
            elif weight is not None:
                matrices[name] = weight
        for names in self.joins(n):
            join(matrices, [f"{name}.weight" for name in names])
        self.matrices.append(matrices)
        self.vectors.append(vectors)

    def factors(self, name: str) -> Tensor | None:
        """A divisor for each frequency, if the file has them."""
        found = self.found(name, self.config.rope.size // 2)
        return found if isinstance(found, Tensor) else None
