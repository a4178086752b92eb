"""Architectures: one file each, and their shared parts."""

from .apertus import Apertus
from .arcee import Arcee
from .architecture import Architecture
from .baichuan import Baichuan
from .bert import Bert
from .bitnet import BitNet
from .bloom import Bloom
from .cache import CACHE_TYPES, Cache, LayerMemory, Positions
from .chatglm import ChatGLM
from .codeshell import CodeShell
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
from .falcon_h1 import FalconH1
from .gemma import Gemma
from .gemma2 import Gemma2
from .gemma3 import Gemma3
from .gemma3n import Gemma3n
from .gemma4 import Gemma4
from .gemma_embedding import GemmaEmbedding
from .glm4 import Glm4
from .glm4moe import Glm4Moe
from .gpt2 import Gpt2
from .gpt_oss import GptOss
from .gptneox import GptNeoX
from .granite import Granite
from .granitehybrid import GraniteHybrid
from .granitemoe import GraniteMoe
from .hunyuan_dense import HunyuanDense
from .hunyuan_moe import HunyuanMoe
from .internlm2 import InternLM2
from .jamba import Jamba
from .jina_bert_v2 import JinaBertV2
from .jina_bert_v3 import JinaBertV3
from .lfm2 import Lfm2
from .lfm2moe import Lfm2Moe
from .llama import Llama
from .llama4 import Llama4
from .mamba import Mamba
from .mamba2 import Mamba2
from .minicpm import MiniCPM
from .minimax_m2 import MiniMaxM2
from .mistral3 import Mistral3
from .modern_bert import ModernBert
from .mpt import Mpt
from .nemotron import Nemotron
from .nemotron_h import NemotronH, NemotronHMoe
from .nomic_bert import NomicBert
from .nomic_bert_moe import NomicBertMoe
from .olmo import Olmo
from .olmo2 import Olmo2
from .olmoe import OlmoE
from .orion import Orion
from .pangu_embedded import PanguEmbedded
from .phi2 import Phi2
from .phi3 import Phi3
from .phimoe import PhiMoe
from .qwen2 import Qwen2
from .qwen2moe import Qwen2Moe
from .qwen3 import Qwen3
from .qwen3moe import Qwen3Moe
from .qwen3next import Qwen3Next
from .qwen35 import Qwen35, Qwen35Moe
from .rwkv6 import Rwkv6
from .rwkv7 import Rwkv7
from .seed_oss import SeedOss
from .smollm3 import SmolLM3
from .stablelm import StableLM
from .starcoder import StarCoder
from .starcoder2 import StarCoder2
from .t5 import T5
from .t5encoder import T5Encoder
from .weight import Matrix, Weight
from .xverse import Xverse

__all__ = [
    "ARCHITECTURES", "CACHE_TYPES", "Architecture", "Cache", "Config", "LayerMemory", "Matrix", "Positions", "Weight",
    "keeps_states", "kept_by",
]  # fmt: skip

ARCHITECTURES: dict[str, type[Architecture]] = {  # general.architecture of a GGUF file
    "apertus": Apertus,
    "arcee": Arcee,
    "baichuan": Baichuan,
    "bert": Bert,
    "bitnet": BitNet,
    "bloom": Bloom,
    "chatglm": ChatGLM,
    "cohere2": Cohere2,
    "codeshell": CodeShell,
    "command-r": CommandR,
    "deepseek2": DeepSeek2,
    "dots1": Dots1,
    "ernie4_5": Ernie45,
    "ernie4_5-moe": Ernie45Moe,
    "eurobert": EuroBert,
    "exaone": Exaone,
    "exaone4": Exaone4,
    "falcon": Falcon,
    "falcon-h1": FalconH1,
    "gemma": Gemma,
    "gemma-embedding": GemmaEmbedding,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "gemma3n": Gemma3n,
    "gemma4": Gemma4,
    "glm4": Glm4,
    "glm4moe": Glm4Moe,
    "gpt-oss": GptOss,
    "gpt2": Gpt2,
    "gptneox": GptNeoX,
    "granite": Granite,
    "granitehybrid": GraniteHybrid,
    "granitemoe": GraniteMoe,
    "hunyuan-dense": HunyuanDense,
    "hunyuan-moe": HunyuanMoe,
    "internlm2": InternLM2,
    "jamba": Jamba,
    "jina-bert-v2": JinaBertV2,
    "jina-bert-v3": JinaBertV3,
    "lfm2": Lfm2,
    "lfm2moe": Lfm2Moe,
    "llama": Llama,
    "llama-embed": Llama,
    "llama4": Llama4,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "minicpm": MiniCPM,
    "minimax-m2": MiniMaxM2,
    "mistral3": Mistral3,
    "modern-bert": ModernBert,
    "mpt": Mpt,
    "nemotron": Nemotron,
    "nemotron_h": NemotronH,
    "nemotron_h_moe": NemotronHMoe,
    "nomic-bert": NomicBert,
    "nomic-bert-moe": NomicBertMoe,
    "olmo": Olmo,
    "olmo2": Olmo2,
    "olmoe": OlmoE,
    "orion": Orion,
    "pangu-embedded": PanguEmbedded,
    "phi2": Phi2,
    "phi3": Phi3,
    "phimoe": PhiMoe,
    "qwen2": Qwen2,
    "qwen2moe": Qwen2Moe,
    "qwen2vl": Qwen2,
    "qwen3": Qwen3,
    "qwen35": Qwen35,
    "qwen35moe": Qwen35Moe,
    "qwen3moe": Qwen3Moe,
    "qwen3next": Qwen3Next,
    "qwen3vl": Qwen3,
    "qwen3vlmoe": Qwen3Moe,
    "rwkv6": Rwkv6,
    "rwkv7": Rwkv7,
    "seed_oss": SeedOss,
    "smollm3": SmolLM3,
    "stablelm": StableLM,
    "starcoder": StarCoder,
    "starcoder2": StarCoder2,
    "t5": T5,
    "t5encoder": T5Encoder,
    "xverse": Xverse,
}


def keeps_states(config: Config) -> bool:
    """Return True if some layer of a model is recurrent, on this rank or on another."""
    kind = ARCHITECTURES[config.name]
    is_decoder = config.is_causal and not kind.is_encoder
    return is_decoder and any(kind.kept(config, n).states for n in range(config.layers))


def kept_by(config: Config) -> list[LayerMemory]:
    """Return what each layer of a model keeps of the tokens before: the layout of its cache. A layer of another rank
    keeps nothing here."""
    kind = ARCHITECTURES[config.name]
    if not config.is_causal or kind.is_encoder:
        return []
    homes = config.cache_homes or (None,) * config.layers
    nothing, own = LayerMemory(0, 0, 0), config.own_layers
    return [kind.kept(config, n)._replace(home=home) if n in own else nothing for n, home in enumerate(homes)]
