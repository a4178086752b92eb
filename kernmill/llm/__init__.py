"""Language models: tokens, chat templates, sampling, architectures, and the model that generates."""

from .chat import ChatTemplate
from .generate import Model
from .sampling import Sampler
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Model", "Sampler", "Tokenizer"]
