"""Language models: tokens, chat templates, sampling, architectures, the model that generates, and a learner."""

from .chat import ChatTemplate
from .generate import Model
from .sampling import Sampler
from .stories import Vocabulary, stories
from .tokenizer import Tokenizer
from .train import Learner, llama_metadata

__all__ = ["ChatTemplate", "Learner", "Model", "Sampler", "Tokenizer", "Vocabulary", "llama_metadata", "stories"]
