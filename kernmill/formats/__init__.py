"""File formats: bytes on disk to named tensors and back."""

from . import gguf as gguf
from . import gguf_write as gguf_write
from . import safetensors as safetensors

__all__ = ["gguf", "gguf_write", "safetensors"]
