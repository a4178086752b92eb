"""Language models: tokens, chat templates, sampling, architectures, the model that generates, and a learner."""

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

from .chat import ChatTemplate
from .generate import Model
from .sampling import Sampler
from .saved_state import load_state, save_state
from .stories import Vocabulary, stories
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .talk import LLM, Reply, ReplyPart, ToolCall
    from .train import Learner, llama_metadata

__all__ = [
    "LLM", "ChatTemplate", "Learner", "Model", "Reply", "ReplyPart", "Sampler", "Tokenizer", "ToolCall", "Vocabulary",
    "llama_metadata", "load_state", "save_state", "stories",
]  # fmt: skip

if not TYPE_CHECKING:  # to a checker a __getattr__ is every name that there could be
    __getattr__, __dir__ = lazy_exports(__name__, "train", "talk", only=__all__)
