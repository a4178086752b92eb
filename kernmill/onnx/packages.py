"""The package of the extra `onnx`: imported here only, with an error that names the command."""

from __future__ import annotations

import importlib
from typing import Any

from kernmill.ir import SettingError

__all__ = ["defs", "helper", "numpy_helper", "onnx"]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(
            "kernmill.onnx needs the package onnx, which is not installed. Run: pip install 'kernmill[onnx]'"
        ) from error


onnx: Any = _package("onnx")
defs: Any = _package("onnx.defs")
helper: Any = _package("onnx.helper")
numpy_helper: Any = _package("onnx.numpy_helper")
