"""Quantized tensors: block types as data and two Tensor expressions, and the GGUF files that hold them."""

from .block import BlockType, Codes
from .files import load, load_tensor, save
from .floats import FloatMatrix, prefers_interleaved_rows
from .joining import joined
from .matrix_unit import MANY_ROWS, float_linear, float_unit
from .product import rows_of_tile
from .registry import BLOCKS, block_type
from .tensor import QuantizedTensor, interleaved_bytes, interleaved_layout, rows_together

__all__ = [
    "BLOCKS",
    "MANY_ROWS",
    "BlockType",
    "Codes",
    "FloatMatrix",
    "QuantizedTensor",
    "block_type",
    "float_linear",
    "float_unit",
    "interleaved_bytes",
    "interleaved_layout",
    "joined",
    "load",
    "load_tensor",
    "prefers_interleaved_rows",
    "rows_of_tile",
    "rows_together",
    "save",
]
