"""File formats: bytes on disk to named tensors and back.

`gguf` and `gguf_write` are imported at their first use (`from kernmill.formats import gguf`), so that importing
kernmill does not wait for them.
"""

from . import safetensors as safetensors

__all__ = ["safetensors"]
