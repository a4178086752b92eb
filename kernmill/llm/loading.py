"""Loading the weights of a model's file: each is copied once, with the adapters that change it.

Tests: tests/kernmill/llm/test_generate.py.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from kernmill import Context
from kernmill.ir import Progress, setting
from kernmill.runtime import default_device

from .. import dist
from ..formats import gguf
from .adapters import Adapter, ControlVector, Given, adapters_of
from .arch import Architecture, Config, Weight
from .arch.part import Absent
from .arch.weight import Watcher
from .file_weights import arenas_for, loaded
from .kept_weights import KeptWeights
from .model_file import check_all_used, naming
from .ranks import own_part
from .split import Split

__all__ = ["Loading"]


class Loading:
    """The tensors of a file on their way into a model. `own`: the part of the file that this rank reads."""

    def __init__(self, file: gguf.GGUFFile, own: gguf.GGUFFile, split: Split | None, watcher: Watcher | None) -> None:
        self._file, self._own, self._split, self._watcher = file, own, split, watcher
        self._kept = KeptWeights(own)
        self._used = set[str]()
        self._bar: Progress | None = None
        self.arenas = arenas_for(own, self._device_of, self._kept)
        self.adapters: list[Adapter | ControlVector] = []

    def _device_of(self, name: str) -> str:
        return default_device() if self._split is None else self._split.device_of(name)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show how far it is. Errors name the file. Many kernels are compiled meanwhile, a few at a time."""
        beside = 2 * min(1, int(setting("COMPILER_PROCESS")))
        count = len(self._own.entries)
        with naming(self._file), Context(COMPILER_PROCESS=beside), Progress("loading", count, "tensor") as self._bar:
            yield

    def open_adapters(self, given: Given, config: Config) -> None:
        """Open the adapters of the model; all ranks must have the same."""
        self.adapters += adapters_of(given, config)
        if config.part is not None:
            dist.agree("the adapters of the model", [(adapter.digest, adapter.scale) for adapter in self.adapters])

    def weight(self, name: str) -> Weight | None:
        """The tensor of a name, with its adapters, on its device; None: the file has none."""
        self._used.add(name)
        if name not in self._file.entries:
            return None
        shape, device = self._file.entries[name].shape, self._device_of(name)
        if name not in self._own.entries:
            return Absent(shape, device)
        if self._bar is not None:
            self._bar.advance(text=name)
        with Context(DEVICE=device):
            found = loaded(self._own, name, self.arenas[device], self._kept)
            for adapter in self.adapters:
                found = adapter.adapted(name, found, shape, own_part(self._own, name))
            return found if self._watcher is None else self._watcher.watched(name, found)

    def finish(self, architecture: Architecture) -> None:
        """All weights are there: keep them if that is wanted, check that none is left, and attach control vectors."""
        for arena in self.arenas.values():
            arena.close()
        self._kept.write()
        self._kept.check_behind()
        elsewhere = self._file.entries.keys() - self._own.entries.keys()
        check_all_used(self._file, self._used | elsewhere, architecture.config)
        for adapter in self.adapters:
            adapter.check_all_used(elsewhere)
            if isinstance(adapter, ControlVector):
                adapter.attach(architecture)
