"""Architectures: one file each, and what they share."""

from .arcee import Arcee
from .architecture import Architecture
from .baichuan import Baichuan
from .cache import CACHE_TYPES, Cache, Places
from .chatglm import ChatGLM
from .cohere2 import Cohere2
from .command_r import CommandR
from .config import Config
from .ernie4_5 import Ernie45
from .exaone import Exaone
from .exaone4 import Exaone4
from .falcon import Falcon
from .gemma import Gemma
from .gemma2 import Gemma2
from .gemma3 import Gemma3
from .glm4 import Glm4
from .gpt2 import Gpt2
from .gptneox import GptNeoX
from .granite import Granite
from .hunyuan_dense import HunyuanDense
from .internlm2 import InternLM2
from .llama import Llama
from .nemotron import Nemotron
from .olmo2 import Olmo2
from .orion import Orion
from .phi2 import Phi2
from .phi3 import Phi3
from .qwen2 import Qwen2
from .qwen3 import Qwen3
from .seed_oss import SeedOss
from .smollm3 import SmolLM3
from .stablelm import StableLM
from .starcoder import StarCoder
from .starcoder2 import StarCoder2
from .weight import Matrix, Weight
from .xverse import Xverse

__all__ = ["ARCHITECTURES", "CACHE_TYPES", "Architecture", "Cache", "Config", "Matrix", "Places", "Weight"]

ARCHITECTURES: dict[str, type[Architecture]] = {  # general.architecture of a GGUF file
    "arcee": Arcee,
    "baichuan": Baichuan,
    "chatglm": ChatGLM,
    "cohere2": Cohere2,
    "command-r": CommandR,
    "ernie4_5": Ernie45,
    "exaone": Exaone,
    "exaone4": Exaone4,
    "falcon": Falcon,
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "glm4": Glm4,
    "gpt2": Gpt2,
    "gptneox": GptNeoX,
    "granite": Granite,
    "hunyuan-dense": HunyuanDense,
    "internlm2": InternLM2,
    "llama": Llama,
    "nemotron": Nemotron,
    "olmo2": Olmo2,
    "orion": Orion,
    "phi2": Phi2,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "qwen2vl": Qwen2,
    "qwen3": Qwen3,
    "qwen3vl": Qwen3,
    "seed_oss": SeedOss,
    "smollm3": SmolLM3,
    "stablelm": StableLM,
    "starcoder": StarCoder,
    "starcoder2": StarCoder2,
    "xverse": Xverse,
}
