"""Layers, optimizers, and files of weights."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from ..methods.other_names import layer_instead_of as _layer_instead_of
from ..methods.other_names import not_in as _not_in
from ..tensor import Tensor as _Tensor
from . import optim as optim
from . import state as state
from .layers import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Bilinear,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    GroupNorm,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LayerNorm2d,
    Linear,
    MultiHeadAttention,
    PReLU,
    RMSNorm,
    Sequential,
)
from .module import Module
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "GRUCell",
    "GroupNorm",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "PReLU",
    "RMSNorm",
    "RNNCell",
    "Sequential",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "optim",
    "state",
]

if not _CHECKING:  # to a checker it would be every name that there could be

    def __getattr__(name: str) -> _Any:
        """Raise the error for an unknown layer, with the replacement of another library's name."""
        raise _not_in(__name__, name, _layer_instead_of(name, _Tensor))
