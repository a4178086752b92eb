"""Architectures: one file each, and what they share."""

from .architecture import Architecture
from .cache import CACHE_TYPES, Cache, Places
from .config import Config
from .gemma2 import Gemma2
from .gemma3 import Gemma3
from .llama import Llama
from .phi3 import Phi3
from .qwen2 import Qwen2
from .qwen3 import Qwen3
from .weight import Matrix, Weight

__all__ = ["ARCHITECTURES", "CACHE_TYPES", "Architecture", "Cache", "Config", "Matrix", "Places", "Weight"]

ARCHITECTURES: dict[str, type[Architecture]] = {  # general.architecture of a GGUF file
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "llama": Llama,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
}
