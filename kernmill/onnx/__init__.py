"""ONNX files as functions of tensors."""

from .model import OnnxModel, from_proto, load

__all__ = ["OnnxModel", "from_proto", "load"]
