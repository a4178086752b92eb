"""The peers: how each is imported, told its threads, given arrays, and asked for its result.

Another peer is another class here and a column `run={"<name>": ..}` in the rows that it can do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from .onnx_graph import OnnxSession

__all__ = ["PEERS", "Peer", "captured", "has_jit", "installed", "missing", "peer", "thread_environment"]

Array = Any  # a NumPy array
Call = Callable[[], Any]


class Peer(ABC):
    """One library."""

    name: str
    module: str
    column: str = ""  # the column of the rows whose expressions it runs, where that is another's
    programs: tuple[str, ...] = ()  # what it needs on PATH
    modules: tuple[str, ...] = ()  # what it needs besides its own module

    @cached_property
    def lib(self) -> Any:
        """The library."""
        return importlib.import_module(self.module)

    def use_threads(self, threads: int) -> None:  # noqa: B027 - most need nothing more
        """What the environment has not settled."""

    @abstractmethod
    def tensor(self, array: Array, dtype: str = "") -> Any:
        """The array in the library's own memory, converted to another of its dtypes where one is named."""

    @abstractmethod
    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        """A call of function(library, *tensors, *constants) whose result lies in memory when it returns.

        Constants are the same in every call, as weights are: a peer that can prepare them once may.
        """

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the library makes of function(library, *tensors) for calls with any tensors."""
        return partial(function, self.lib)

    @abstractmethod
    def array(self, result: Any) -> Array:
        """A result as a NumPy array; half types as float32."""


class Kernmill(Peer):
    """Captured with jit; results are new tensors in memory."""

    name = module = "kernmill"

    def tensor(self, array: Array, dtype: str = "") -> Any:
        made = self.lib.Tensor(array)
        return made.cast(getattr(self.lib.dtypes, dtype)).realize() if dtype else made

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        step = captured(lambda *given: function(lib, *given, *constants))
        return lambda: step(*tensors)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return captured(partial(function, self.lib))

    def array(self, result: Any) -> Array:
        is_half = result.dtype in (self.lib.dtypes.bfloat16, self.lib.dtypes.float16)
        return (result.float() if is_half else result).numpy()


class Opencl(Kernmill):
    """kernmill again, on the first OpenCL device: what its code loses or gains against LLVM's on the same machine."""

    name, module = "opencl", "pyopencl"
    column = "kernmill"

    @cached_property
    def lib(self) -> Any:
        return importlib.import_module("kernmill")

    def tensor(self, array: Array, dtype: str = "") -> Any:
        made = self.lib.Tensor(array, device="CL")
        return made.cast(getattr(self.lib.dtypes, dtype)).realize() if dtype else made


def captured(function: Callable[..., Any]) -> Callable[..., Any]:
    """kernmill.jit of a function that returns one tensor; without a jit, a graph built and realized at each call."""
    if has_jit():
        return importlib.import_module("kernmill").jit(function)  # type: ignore[no-any-return]
    return lambda *given: function(*given).realize()


def has_jit() -> bool:
    """Whether kernmill can capture; the table says so where it cannot."""
    return callable(getattr(importlib.import_module("kernmill"), "jit", None))


class Numpy(Peer):
    """Plain NumPy expressions."""

    name = module = "numpy"

    def use_threads(self, threads: int) -> None:
        if importlib.util.find_spec("threadpoolctl") is not None:
            importlib.import_module("threadpoolctl").threadpool_limits(threads)

    def tensor(self, array: Array, dtype: str = "") -> Any:
        return array.astype(dtype) if dtype else array

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        given = (*tensors, *constants)
        return lambda: function(lib, *given)

    def array(self, result: Any) -> Array:
        return self.lib.asarray(result)


class Torch(Peer):
    """Eager, in inference mode: without the bookkeeping that gradients need."""

    name = module = "torch"

    def use_threads(self, threads: int) -> None:
        self.lib.set_num_threads(threads)

    def tensor(self, array: Array, dtype: str = "") -> Any:
        made = self.lib.from_numpy(array).clone()
        return made.to(getattr(self.lib, dtype)) if dtype else made

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        given = (*tensors, *constants)

        @lib.inference_mode()  # type: ignore[untyped-decorator]
        def call() -> Any:
            return function(lib, *given)

        return call  # type: ignore[no-any-return]

    def array(self, result: Any) -> Array:
        return (result.float() if result.dtype in (self.lib.bfloat16, self.lib.float16) else result).numpy()


class TorchCompile(Torch):
    """torch.compile (inductor); constants are parameters of a frozen module, which it may pack."""

    name = "torch.compile"
    programs = ("g++",)

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        lib._dynamo.reset()
        if constants:
            config: Any = importlib.import_module("torch._inductor.config")
            config.freezing = True

        class Module(lib.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                for place, value in enumerate(constants):
                    self.register_buffer(f"constant{place}", value)

            def forward(self, *given: Any) -> Any:
                return function(lib, *given, *(getattr(self, f"constant{i}") for i in range(len(constants))))

        step = lib.compile(Module().eval())

        @lib.no_grad()  # type: ignore[untyped-decorator]
        def call() -> Any:
            return step(*tensors)

        return call  # type: ignore[no-any-return]

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.lib.compile(partial(function, self.lib))  # type: ignore[no-any-return]


class Jax(Peer):
    """jax.jit on the CPU; the call waits for its result."""

    name = module = "jax"

    def use_threads(self, threads: int) -> None:
        self.lib.config.update("jax_platforms", "cpu")

    def tensor(self, array: Array, dtype: str = "") -> Any:
        made = self.lib.numpy.array(array)
        return (made.astype(dtype) if dtype else made).block_until_ready()

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        step = lib.jit(lambda *given: function(lib, *given))
        given = (*tensors, *constants)
        return lambda: step(*given).block_until_ready()

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        step = self.lib.jit(partial(function, self.lib))
        return lambda *given: step(*given).block_until_ready()

    def array(self, result: Any) -> Array:
        return importlib.import_module("numpy").asarray(
            result.astype("float32") if str(result.dtype) in ("bfloat16", "float16") else result
        )


class Onnxruntime(Peer):
    """A session over a graph written with `onnx`; constants are initializers, which it may pack."""

    name = module = "onnxruntime"
    modules = ("onnx",)
    threads = 1

    def use_threads(self, threads: int) -> None:
        self.threads = threads

    def tensor(self, array: Array, dtype: str = "") -> Any:
        return array.astype(dtype) if dtype else array

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        return OnnxSession(self.lib, function, tensors, constants, self.threads).run

    def array(self, result: Any) -> Array:
        return result.numpy()


class Tinygrad(Peer):
    """TinyJit on the CPU device; the call waits for its result. Its C compiler is clang."""

    name = module = "tinygrad"
    programs = ("clang",)

    def tensor(self, array: Array, dtype: str = "") -> Any:
        made = self.lib.Tensor(array, device="CPU")
        return (made.cast(getattr(self.lib.dtypes, dtype)).contiguous() if dtype else made).realize()

    def bind(self, function: Callable[..., Any], tensors: Sequence[Any], constants: Sequence[Any] = ()) -> Call:
        lib = self.lib
        step = lib.TinyJit(lambda *given: function(lib, *given).realize())
        given = (*tensors, *constants)
        device = lib.Device["CPU"]

        def call() -> Any:
            result = step(*given)
            device.synchronize()
            return result

        return call

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        lib = self.lib
        step = lib.TinyJit(lambda *given: function(lib, *given).realize())
        device = lib.Device["CPU"]

        def call(*given: Any) -> Any:
            result = step(*given)
            device.synchronize()
            return result

        return call

    def array(self, result: Any) -> Array:
        is_half = result.dtype in (self.lib.dtypes.bfloat16, self.lib.dtypes.float16)
        return (result.float() if is_half else result).numpy()


PEERS: dict[str, Peer] = {
    one.name: one for one in (Kernmill(), Opencl(), Numpy(), Torch(), TorchCompile(), Jax(), Onnxruntime(), Tinygrad())
}


def peer(name: str) -> Peer:
    """A peer by name."""
    return PEERS[name]


def missing(name: str) -> str:
    """What a peer lacks here, found without importing it; nothing where it can run."""
    one = PEERS[name]
    modules = [module for module in (one.module, *one.modules) if importlib.util.find_spec(module) is None]
    return ", ".join([*modules, *(program for program in one.programs if shutil.which(program) is None)])


def installed(name: str) -> bool:
    """Whether a peer can run here."""
    return not missing(name)


def thread_environment(threads: int) -> dict[str, str]:
    """The environment in which every peer uses that many threads. It counts before the first import only."""
    names = ("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
             "NPROC", "NUM_CPU_THREADS", "POCL_MAX_PTHREAD_COUNT")  # fmt: skip
    settings = dict.fromkeys(names, str(threads))
    settings |= {"JAX_PLATFORMS": "cpu", "DEV": "CPU"}
    settings["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    return {**os.environ, **settings}
