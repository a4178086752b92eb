"""Imports at first use: the modules of a package (PEP 562), or one other module."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from .locks import before_forks

__all__ = ["LazyModule", "lazy_exports"]


def lazy_exports(
    package: str, *modules: str, only: Collection[str] = (), by_name: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. A name is one of these modules (the last part of a dotted one),
    or is in `__all__` of one; the first match counts. `__dir__` lists existing names, the modules and `only`; other
    names need an import.

    `only`: the only allowed names. `by_name`: modules whose `__all__` is not searched. Modules and other names must
    differ: an imported module is an attribute of the package.
    """
    module_of = {module.rpartition(".")[2]: module for module in (*modules, *by_name)}

    def find(name: str) -> Any:
        is_foreign = name.startswith("_") or (bool(only) and name not in only)
        for module in (module_of[name],) if name in module_of else () if is_foreign else modules:
            with before_forks():
                found = import_module(f".{module}", package)
            if name in module_of:
                return found
            if name in found.__all__:
                return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *module_of, *only})

    return find, names


class LazyModule:
    """A module that is imported at the first access to an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with before_forks():  # a forked child would wait for an import lock whose thread does not exist there
            module = import_module(self._name)
        found = getattr(module, attribute)
        setattr(self, attribute, found)  # found directly at the next access
        return found
