"""Optimizers, and schedules of their rates."""

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from ...methods.other_names import OPTIMIZERS as _OPTIMIZERS
from ...methods.other_names import named_in as _named_in
from ...methods.other_names import not_in as _not_in
from . import lr_scheduler as lr_scheduler
from .adaptive import LAMB, Adadelta, Adamax, Lion, Muon, NAdam, RAdam
from .base import SGD, Adagrad, Adam, AdamW, Group, Optimizer, RMSprop, clip_grad_norm
from .scaler import GradScaler

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "GradScaler",
    "Group",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "clip_grad_norm",
    "lr_scheduler",
]

if not _CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> _Any:
        """Raise the error for an unknown optimizer, with the replacement of another library's name."""
        raise _not_in(__name__, name, _named_in(_OPTIMIZERS, name))
