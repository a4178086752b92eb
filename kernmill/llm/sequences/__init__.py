"""The parts of an engine: requests and their results, slots that hold sequences, and the steps of a model."""

from .drafts import DraftOptions, DraftSource, ModelDraft, NgramDraft
from .requests import Generation, GenerationRequest, Piece, QueueFull, SlotBusy, TokenLogprob, Usage
from .slots import Slot, SlotState, Task
from .steps import Steps

__all__ = [
    "DraftOptions",
    "DraftSource",
    "Generation",
    "GenerationRequest",
    "ModelDraft",
    "NgramDraft",
    "Piece",
    "QueueFull",
    "Slot",
    "SlotBusy",
    "SlotState",
    "Steps",
    "Task",
    "TokenLogprob",
    "Usage",
]
