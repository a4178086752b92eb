"""Layers, optimizers, and files of weights."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from ..methods.other_names import layer_instead_of as _layer_instead_of
from ..tensor import Tensor as _Tensor
from . import optim as optim
from . import state as state
from .layers import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Dropout,
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
    RMSNorm,
    Sequential,
)
from .module import Module, scope
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
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
    "RMSNorm",
    "RNNCell",
    "Sequential",
    "optim",
    "scope",
    "state",
]

if not _CHECKING:  # to a checker it would be every name that there could be

    def __getattr__(name: str) -> _Any:
        """Raise the error for an unknown layer, with the replacement of another library's name."""
        text, hint = f"module {__name__!r} has no attribute {name!r}", _layer_instead_of(name, _Tensor)
        raise AttributeError(f"{text}.{hint}" if hint else text, name=name)
