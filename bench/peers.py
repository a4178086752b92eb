"""The peers: how each is imported, told its threads, given arrays, and asked for its result.

Another peer is another class here and a column `run={"<name>": ..}` in the rows that it can do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

__all__ = ["PEERS", "Peer", "captured", "has_jit", "installed", "peer", "thread_environment"]

Array = Any  # a NumPy array


class Peer(ABC):
    """One library."""

    name: str
    module: str
    column: str = ""  # the column of the rows whose expressions it runs, where that is another's

    @cached_property
    def lib(self) -> Any:
        """The library."""
        return importlib.import_module(self.module)

    def use_threads(self, threads: int) -> None:  # noqa: B027 - most need nothing more
        """What the environment has not settled."""

    @abstractmethod
    def tensor(self, array: Array) -> Any:
        """The array in the library's own memory."""

    @abstractmethod
    def bind(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
        """A call of function(library, *tensors) whose result lies in memory when it returns."""

    @abstractmethod
    def array(self, result: Any) -> Array:
        """A result as a NumPy array."""


class Kernmill(Peer):
    """Captured with jit; results are new tensors in memory."""

    name = module = "kernmill"

    def tensor(self, array: Array) -> Any:
        return self.lib.Tensor(array)

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
        lib = self.lib
        step = captured(lambda *given: function(lib, *given))
        return lambda: step(*tensors)

    def array(self, result: Any) -> Array:
        return result.numpy()


def captured(function: Callable[..., Any]) -> Callable[..., Any]:
    """kernmill.jit of a function that returns one tensor; without a jit, a graph built and realized at each call."""
    if has_jit():
        return importlib.import_module("kernmill").jit(function)  # type: ignore[no-any-return]
    return lambda *given: function(*given).realize()


def has_jit() -> bool:
    """Whether kernmill can capture; the table says so where it cannot."""
    return callable(getattr(importlib.import_module("kernmill"), "jit", None))


class Opencl(Kernmill):
    """kernmill again, on the first OpenCL device: what its code loses or gains against LLVM's on the same machine."""

    name, module = "opencl", "pyopencl"
    column = "kernmill"

    @cached_property
    def lib(self) -> Any:
        return importlib.import_module("kernmill")

    def tensor(self, array: Array) -> Any:
        return self.lib.Tensor(array, device="CL")


class Numpy(Peer):
    """Plain NumPy expressions."""

    name = module = "numpy"

    def use_threads(self, threads: int) -> None:
        if importlib.util.find_spec("threadpoolctl") is not None:
            importlib.import_module("threadpoolctl").threadpool_limits(threads)

    def tensor(self, array: Array) -> Any:
        return array

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
        lib = self.lib
        return lambda: function(lib, *tensors)

    def array(self, result: Any) -> Array:
        return self.lib.asarray(result)


class Torch(Peer):
    """Eager, in inference mode: without the bookkeeping that gradients need."""

    name = module = "torch"

    def use_threads(self, threads: int) -> None:
        self.lib.set_num_threads(threads)

    def tensor(self, array: Array) -> Any:
        return self.lib.from_numpy(array).clone()

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
        lib = self.lib

        @lib.inference_mode()  # type: ignore[untyped-decorator]
        def call() -> Any:
            return function(lib, *tensors)

        return call  # type: ignore[no-any-return]

    def array(self, result: Any) -> Array:
        return result.numpy()


PEERS: dict[str, Peer] = {one.name: one for one in (Kernmill(), Opencl(), Numpy(), Torch())}


def peer(name: str) -> Peer:
    """A peer by name."""
    return PEERS[name]


def installed(name: str) -> bool:
    """Whether a peer can be imported, found without importing it."""
    return importlib.util.find_spec(PEERS[name].module) is not None


def thread_environment(threads: int) -> dict[str, str]:
    """The environment in which every peer uses that many threads. It counts before the first import only."""
    names = ("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
             "POCL_MAX_PTHREAD_COUNT")  # fmt: skip
    return {**os.environ, **dict.fromkeys(names, str(threads))}
