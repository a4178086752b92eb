"""Architectures: one file each, and their shared parts."""

from .arcee import Arcee
from .architecture import Architecture
from .baichuan import Baichuan
from .bert import Bert
from .cache import CACHE_TYPES, Cache, Places
from .chatglm import ChatGLM
from .cohere2 import Cohere2
from .command_r import CommandR
from .config import Config
from .deepseek2 import DeepSeek2
from .dots1 import Dots1
from .ernie4_5 import Ernie45
from .ernie4_5_moe import Ernie45Moe
from .eurobert import EuroBert
from .exaone import Exaone
from .exaone4 import Exaone4
from .falcon import Falcon
from .gemma import Gemma
from .gemma2 import Gemma2
from .gemma3 import Gemma3
from .gemma_embedding import GemmaEmbedding
from .glm4 import Glm4
from .glm4moe import Glm4Moe
from .gpt2 import Gpt2
from .gpt_oss import GptOss
from .gptneox import GptNeoX
from .granite import Granite
from .granitemoe import GraniteMoe
from .hunyuan_dense import HunyuanDense
from .hunyuan_moe import HunyuanMoe
from .internlm2 import InternLM2
from .jina_bert_v2 import JinaBertV2
from .jina_bert_v3 import JinaBertV3
from .llama import Llama
from .llama4 import Llama4
from .minimax_m2 import MiniMaxM2
from .modern_bert import ModernBert
from .nemotron import Nemotron
from .nomic_bert import NomicBert
from .nomic_bert_moe import NomicBertMoe
from .olmo2 import Olmo2
from .olmoe import OlmoE
from .orion import Orion
from .phi2 import Phi2
from .phi3 import Phi3
from .phimoe import PhiMoe
from .qwen2 import Qwen2
from .qwen2moe import Qwen2Moe
from .qwen3 import Qwen3
from .qwen3moe import Qwen3Moe
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
    "bert": Bert,
    "chatglm": ChatGLM,
    "cohere2": Cohere2,
    "command-r": CommandR,
    "deepseek2": DeepSeek2,
    "dots1": Dots1,
    "ernie4_5": Ernie45,
    "ernie4_5-moe": Ernie45Moe,
    "eurobert": EuroBert,
    "exaone": Exaone,
    "exaone4": Exaone4,
    "falcon": Falcon,
    "gemma": Gemma,
    "gemma-embedding": GemmaEmbedding,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "glm4": Glm4,
    "glm4moe": Glm4Moe,
    "gpt-oss": GptOss,
    "gpt2": Gpt2,
    "gptneox": GptNeoX,
    "granite": Granite,
    "granitemoe": GraniteMoe,
    "hunyuan-dense": HunyuanDense,
    "hunyuan-moe": HunyuanMoe,
    "internlm2": InternLM2,
    "jina-bert-v2": JinaBertV2,
    "jina-bert-v3": JinaBertV3,
    "llama": Llama,
    "llama-embed": Llama,
    "llama4": Llama4,
    "minimax-m2": MiniMaxM2,
    "modern-bert": ModernBert,
    "nemotron": Nemotron,
    "nomic-bert": NomicBert,
    "nomic-bert-moe": NomicBertMoe,
    "olmo2": Olmo2,
    "olmoe": OlmoE,
    "orion": Orion,
    "phi2": Phi2,
    "phi3": Phi3,
    "phimoe": PhiMoe,
    "qwen2": Qwen2,
    "qwen2moe": Qwen2Moe,
    "qwen2vl": Qwen2,
    "qwen3": Qwen3,
    "qwen3moe": Qwen3Moe,
    "qwen3vl": Qwen3,
    "qwen3vlmoe": Qwen3Moe,
    "seed_oss": SeedOss,
    "smollm3": SmolLM3,
    "stablelm": StableLM,
    "starcoder": StarCoder,
    "starcoder2": StarCoder2,
    "xverse": Xverse,
}
