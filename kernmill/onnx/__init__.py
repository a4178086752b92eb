"""ONNX files as functions of tensors, and functions as ONNX files."""

from .export import export
from .model import OnnxModel, from_proto, load

__all__ = ["OnnxModel", "export", "from_proto", "load"]
