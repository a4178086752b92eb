"""Layers of transformers, with PyTorch's names of arguments and weights; the batch is always the first axis.

Masks are as in `scaled_dot_product_attention`: True means *may be seen*. A mask of keys that are padding is a mask of
shape (batch, 1, 1, keys).
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable

from kernmill.ir import DType, SettingError, ShapeError, dtypes

from ..arguments import is_whole
from ..tensor import Tensor
from .layers import Dropout, LayerNorm, Linear, MultiHeadAttention
from .module import Module

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]  # fmt: skip

_MOST_COPIES = 1 << 12  # of a layer: each has tensors of its own and a part in every graph


class TransformerEncoderLayer(Module):
    """Self-attention and a feed-forward part, each with dropout, the input added, and a norm after it.

    With `norm_first` each norm is before its part. `activation` None is `Tensor.relu`.
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Callable[[Tensor], Tensor] | None = None, *, layer_norm_eps: float = 1e-5,
                 norm_first: bool = False, bias: bool = True,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        if not isinstance(layer_norm_eps, (int, float)) or not isinstance(norm_first, bool):
            raise SettingError(
                f"{type(self).__name__}: layer_norm_eps must be a number and norm_first a bool. Give such values."
            )
        activation = Tensor.relu if activation is None else activation
        if not callable(activation):
            raise SettingError(
                f"{type(self).__name__}: activation={activation!r}. Give a function of a tensor, such as Tensor.gelu."
            )
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout, bias, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout, self.activation, self.norm_first = Dropout(dropout), activation, norm_first

    def forward(self, src: Tensor, src_mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Shapes: (batch, length, d_model) -> the same; the mask as in MultiHeadAttention."""
        x = self._with(src, self.norm1, lambda x: self.self_attn(x, attn_mask=src_mask, is_causal=is_causal))
        return self._with(x, self.norm2, self._feed_forward)

    def _with(self, x: Tensor, norm: LayerNorm, part: Callable[[Tensor], Tensor]) -> Tensor:
        """A part around which the input is added."""
        if self.norm_first:
            added: Tensor = x + self.dropout(part(norm(x)))
            return added
        result: Tensor = norm(x + self.dropout(part(x)))
        return result

    def _feed_forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return result


class TransformerDecoderLayer(TransformerEncoderLayer):
    """Self-attention, attention to the memory of an encoder, and a feed-forward part."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Callable[[Tensor], Tensor] | None = None, *, layer_norm_eps: float = 1e-5,
                 norm_first: bool = False, bias: bool = True,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        super().__init__(
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps=layer_norm_eps, norm_first=norm_first,
            bias=bias, dtype=dtype,
        )  # fmt: skip
        self.multihead_attn = MultiHeadAttention(d_model, nhead, dropout, bias, dtype=dtype)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

    def forward(  # type: ignore[override]
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None, *,
        tgt_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Shapes: (batch, length, d_model), (batch, memory length, d_model) -> (batch, length, d_model)."""
        x = self._with(tgt, self.norm1, lambda x: self.self_attn(x, attn_mask=tgt_mask, is_causal=tgt_is_causal))
        x = self._with(x, self.norm2, lambda x: self.multihead_attn(x, memory, attn_mask=memory_mask))
        return self._with(x, self.norm3, self._feed_forward)


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after the other, and a norm at the end, if given."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers = _copies(type(self).__name__, encoder_layer, num_layers)
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Shapes: (batch, length, d_model) -> the same."""
        for layer in self.layers:
            src = layer(src, mask, is_causal=is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Copies of a decoder layer, one after the other, and a norm at the end, if given."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        self.layers = _copies(type(self).__name__, decoder_layer, num_layers)
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                *, tgt_is_causal: bool = False) -> Tensor:  # fmt: skip
        """Shapes: (batch, length, d_model), (batch, memory length, d_model) -> (batch, length, d_model)."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_is_causal=tgt_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder that reads its result.

    Source: Vaswani et al., Attention Is All You Need, NeurIPS 2017.
    """

    def __init__(self, d_model: int, nhead: int, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Callable[[Tensor], Tensor] | None = None, *, layer_norm_eps: float = 1e-5,
                 norm_first: bool = False, bias: bool = True,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        given = (d_model, nhead, dim_feedforward, dropout, activation)
        options = {"layer_norm_eps": layer_norm_eps, "bias": bias, "dtype": dtype}
        own, other = (LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) for _ in range(2))
        encoder = TransformerEncoderLayer(*given, norm_first=norm_first, **options)  # type: ignore[arg-type]
        decoder = TransformerDecoderLayer(*given, norm_first=norm_first, **options)  # type: ignore[arg-type]
        self.encoder = TransformerEncoder(encoder, num_encoder_layers, own)
        self.decoder = TransformerDecoder(decoder, num_decoder_layers, other)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                memory_mask: Tensor | None = None, *, src_is_causal: bool = False,
                tgt_is_causal: bool = False) -> Tensor:  # fmt: skip
        """Shapes: (batch, source length, d_model), (batch, length, d_model) -> (batch, length, d_model)."""
        memory = self.encoder(src, src_mask, is_causal=src_is_causal)
        result: Tensor = self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_is_causal=tgt_is_causal)
        return result


def _copies(name: str, layer: Module, count: int) -> list[Module]:
    if not isinstance(layer, Module):
        raise SettingError(f"{name}: {type(layer).__name__} is not a layer. Give a module.")
    if not is_whole(count, 1) or count > _MOST_COPIES:
        raise ShapeError(
            f"{name}: num_layers={reprlib.repr(count)}: must be an integer >= 1, and at most {_MOST_COPIES}."
        )
    return [copy.deepcopy(layer) for _ in range(count)]
