"""File formats: bytes on disk to named tensors and back."""

from . import safetensors as safetensors

__all__ = ["safetensors"]
