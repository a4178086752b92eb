"""Packages of the extra `llm`: imported when they are used, with an error that names the command."""

from __future__ import annotations

import importlib
from typing import Any

from kernmill.ir import SettingError

__all__ = ["package"]


def package(name: str, purpose: str) -> Any:
    """A package of the extra `llm`.

    Raises:
        SettingError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(
            f"{purpose} needs the package {name}, which is not installed. Run: pip install 'kernmill[llm]'"
        ) from error
