"""Packages of the extras: imported when they are used, with an error that names the command."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from kernmill.ir import SettingError

__all__ = ["check_package", "package"]


def package(name: str, purpose: str, extra: str = "llm") -> Any:
    """A package of an extra.

    Raises:
        SettingError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(name, purpose, extra) from error


def check_package(name: str, purpose: str, extra: str = "llm") -> None:
    """Check that a package of an extra is installed, without importing it.

    Raises:
        SettingError: it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise _missing(name, purpose, extra)


def _missing(name: str, purpose: str, extra: str = "llm") -> SettingError:
    return SettingError(
        f"{purpose} needs the package {name}, which is not installed. Run: pip install 'kernmill[{extra}]'"
    )
