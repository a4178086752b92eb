"""Folders of Hugging Face models, opened like GGUF files: config.json, safetensors files and tokenizer.json."""

from .reading import is_folder, read, read_any, size_bytes

__all__ = ["is_folder", "read", "read_any", "size_bytes"]
