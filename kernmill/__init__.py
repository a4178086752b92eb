"""kernmill: a tensor compiler."""

import gc as _gc
import os as _os

_here = _os.path.dirname(_os.path.realpath(__file__))
_is_checkout = not _os.path.isdir(_os.path.join(_here, "ir"))
if _is_checkout:  # the sub-packages are next to it, in a wheel inside
    __path__.append(_os.path.dirname(_here))

_was_enabled = _gc.isenabled()
_gc.disable()  # imported objects stay alive: scanning them for garbage takes a fifth of the time
try:
    from typing import TYPE_CHECKING

    from kernmill.ir import CompileError as CompileError
    from kernmill.ir import (
        Context,
        DeviceError,
        DType,
        DTypeError,
        FormatError,
        GradientError,
        IndexRangeError,
        InternalError,
        KernmillError,
        LinAlgError,
        OutOfMemoryError,
        Progress,
        SettingError,
        ShapeError,
        dtypes,
        scope,
    )
    from kernmill.ir import grow_old as _grow_old
    from kernmill.ir import lazy_exports as _lazy_exports

    from . import tensor_bytes as tensor_bytes  # pickling
    from .autocasting import autocast
    from .lazy import REFLECTED as _REFLECTED
    from .lazy import no_grad, train
    from .methods.contraction import einsum
    from .methods.elementwise import where
    from .methods.movement import cat, meshgrid, stack
    from .methods.other_names import FRONT as _FRONT
    from .methods.other_names import instead_of as _instead_of
    from .methods.other_names import named_in as _named_in
    from .methods.random import manual_seed
    from .tensor import Tensor
    from .variable import Variable

    _grow_old()
except KeyboardInterrupt:
    import sys as _sys

    if _sys.orig_argv[1:3] == ["-m", "kernmill"] or _os.path.basename(_sys.argv[0]) == "kernmill":  # see __main__.py
        raise SystemExit(130) from None
    raise
finally:
    if _was_enabled:
        _gc.enable()

if TYPE_CHECKING:
    from . import array_api as array_api
    from . import data as data
    from . import distributions as distributions
    from . import fft as fft
    from . import functional as functional
    from . import linalg as linalg
    from . import nn as nn
    from .captures import jit
    from .complex_tensor import ComplexTensor
    from .profiling import profile

    __version__: str

__all__ = [
    "CompileError",
    "ComplexTensor",
    "Context",
    "DType",
    "DTypeError",
    "DeviceError",
    "FormatError",
    "GradientError",
    "IndexRangeError",
    "InternalError",
    "KernmillError",
    "LinAlgError",
    "OutOfMemoryError",
    "Progress",
    "SettingError",
    "ShapeError",
    "Tensor",
    "Variable",
    "array_api",
    "autocast",
    "cat",
    "data",
    "distributions",
    "dtypes",
    "einsum",
    "fft",
    "functional",
    "jit",
    "linalg",
    "manual_seed",
    "meshgrid",
    "nn",
    "no_grad",
    "profile",
    "scope",
    "stack",
    "train",
    "where",
]


def _version() -> str:
    """Return the version; imported at the first access: reading it takes longer than everything else here."""
    project = _os.path.join(_os.path.dirname(_here), "pyproject.toml")
    if _is_checkout and _os.path.isfile(project):  # the installed version may differ
        import tomllib

        with open(project, "rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kernmill")
    except PackageNotFoundError:  # folders that were copied by themselves
        return "0 (not installed)"


if not TYPE_CHECKING:  # to a checker a __getattr__ is every name that there could be
    _MODULES = ("captures", "complex_tensor", "data", "distributions", "functional", "linalg", "nn", "profiling")
    _find, __dir__ = _lazy_exports(__name__, *_MODULES, only=__all__, by_name=("array_api", "fft"))

    def __getattr__(name: str) -> object:
        """Import the module of a name; for an unknown name, say where it is."""
        if name == "__version__":
            return globals().setdefault(name, _version())
        try:
            return _find(name)
        except AttributeError as error:
            if hint := _named_in(_FRONT, name):
                raise AttributeError(f"{error}.{hint}", name=name) from None
            for owner in ("Tensor", "dtypes"):
                if not name.startswith("_") and hasattr(globals()[owner], name):
                    raise AttributeError(f"{error}. Write {owner}.{name}.", name=name) from None
            if hint := _instead_of(name, Tensor):
                raise AttributeError(f"{error}.{hint}", name=name) from None
            raise

    def _array_namespace(self: object, *, api_version: str | None = None) -> object:
        """kernmill.array_api, which the array API standard asks every array for."""
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise SettingError(f"__array_namespace__: api_version={api_version!r}: must be 2024.12 or earlier.")
        return _find("array_api")

    Tensor.__array_namespace__ = _array_namespace
    _REFLECTED[complex] = lambda x: _find("ComplexTensor")(x)  # Tensor + 1j


if _os.environ.get("PROFILE"):
    from .profiling.session import begin as _begin

    _begin(_os.environ["PROFILE"])
