"""Quantized tensors: block types as data and two Tensor expressions, and the GGUF files that hold them."""

from .block import BlockType, Codes
from .files import load, load_tensor, save
from .registry import BLOCKS, block_type
from .tensor import QuantizedTensor, interleaved_bytes

__all__ = [
    "BLOCKS",
    "BlockType",
    "Codes",
    "QuantizedTensor",
    "block_type",
    "interleaved_bytes",
    "load",
    "load_tensor",
    "save",
]
