"""The models of a server: loaded when asked for, dropped when others need the memory, or after some idle time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from kernmill.ir import KernmillError, OutOfMemoryError

from ..llm import folders
from ..llm.talk import LLM
from .errors import RequestError
from .limits import ServerOptions

__all__ = ["ModelEntry", "ModelStore"]

Loader = Callable[[str, ServerOptions], LLM]
_log = logging.getLogger("kernmill.serve")


class ModelEntry:
    """A model by name: its file, and the model while it is loaded."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.llm: LLM | None = None
        self.error: str | None = None
        self.users = 0
        self.used_at = time.monotonic()
        self.created = int(time.time())
        self.lock = asyncio.Lock()

    @property
    def size_bytes(self) -> int:
        """The size of the file: about that of the weights."""
        try:
            return folders.size_bytes(self.path)
        except OSError:
            return 0

    @property
    def state(self) -> str:
        """ "loaded", "loading", "failed" or "unloaded"."""
        if self.is_ready:
            return "loaded"
        is_bad = self.error is not None or self.llm is not None
        return "loading" if self.lock.locked() else "failed" if is_bad else "unloaded"

    @property
    def is_ready(self) -> bool:
        """True if it can answer."""
        return self.llm is not None and not self.llm.has_failed

    @contextmanager
    def used(self) -> Generator[LLM]:
        """The model, which is not dropped while the block runs."""
        assert self.llm is not None
        self.users += 1
        try:
            yield self.llm
        finally:
            self.users -= 1
            self.used_at = time.monotonic()


class ModelStore:
    """Models by name. `load` opens a file, in a thread."""

    def __init__(self, paths: Mapping[str, str], options: ServerOptions, load: Loader) -> None:
        self.entries = {name: ModelEntry(name, path) for name, path in paths.items()}
        self._options, self._load = options, load
        self._loading = asyncio.Lock()  # one load at a time: each takes all cores

    @property
    def first(self) -> ModelEntry:
        """The model that requests without a name get."""
        return next(
            (entry for entry in self.entries.values() if entry.llm is not None), next(iter(self.entries.values()))
        )

    def find(self, name: str | None) -> ModelEntry:
        """Return the entry of a name. With one model every name is its.

        Raises:
            RequestError: an unknown name.
        """
        if len(self.entries) == 1 or not name:
            return self.first
        entry = self.entries.get(name) or self.entries.get(name.removesuffix(".gguf"))
        if entry is None:
            known = ", ".join(self.entries)
            raise RequestError(
                404, f"model: there is no model {name[:100]!r}. Models are {known}.", param="model",
                code="model_not_found",
            )  # fmt: skip
        return entry

    async def ready(self, name: str | None) -> ModelEntry:
        """Return a model that is loaded; loads it if it is not the first one, which is loaded at the start.

        Raises:
            RequestError: an unknown name; it is loading, or cannot be loaded.
        """
        entry = self.find(name)
        if not entry.is_ready:
            if len(self.entries) == 1 and entry.state == "loading":
                raise RequestError(503, "The model is loading.", code="loading", headers={"Retry-After": "1"})
            await self.load(entry)
        entry.used_at = time.monotonic()
        return entry

    async def load(self, entry: ModelEntry) -> None:
        """Load a model, after others have made room; one whose engine failed is loaded again.

        Raises:
            RequestError: it cannot be loaded.
        """
        async with entry.lock, self._loading:
            if entry.is_ready:
                return
            if entry.users:  # the last of its requests are about to end
                raise RequestError(503, "The model failed. Try again.", code="failed", headers={"Retry-After": "1"})
            await self.drop(entry)
            await self._make_room(entry)
            try:
                entry.llm = await asyncio.to_thread(self._load, entry.path, self._options)
                entry.error = None
                _log.info("%s is loaded", entry.name)
            except OutOfMemoryError as error:
                entry.error = str(error)
                _log.error("%s does not fit into memory: %s", entry.name, error)
                raise RequestError(503, f"The model {entry.name} does not fit into memory.") from error
            except Exception as error:
                entry.error = str(error) or type(error).__name__
                is_fault = not isinstance(error, KernmillError)
                _log.error("%s cannot be loaded: %s", entry.name, entry.error, exc_info=error if is_fault else None)
                raise RequestError(503, f"The model {entry.name} cannot be loaded. See the server's log.") from error

    async def _make_room(self, entry: ModelEntry) -> None:
        """Drop the least recently used models until one more fits the limits.

        Raises:
            RequestError: all loaded models are in use.
        """
        while True:
            loaded = [one for one in self.entries.values() if one.llm is not None]
            total = sum(one.size_bytes for one in loaded) + entry.size_bytes
            is_over = self._options.models_bytes and loaded and total > self._options.models_bytes
            if len(loaded) < self._options.models_max and not is_over:
                return
            idle = sorted((one for one in loaded if not one.users), key=lambda one: one.used_at)
            if not idle:
                raise RequestError(
                    503, "All loaded models are in use. Try again later.", code="busy", headers={"Retry-After": "5"}
                )
            await self.drop(idle[0])

    async def drop(self, entry: ModelEntry) -> None:
        """Release a model."""
        llm, entry.llm = entry.llm, None
        if llm is not None:
            _log.info("%s is dropped", entry.name)
            await asyncio.to_thread(_release, llm, 0)

    async def drop_idle(self) -> None:
        """Drop models that nobody has used for the time of the options; runs until it is cancelled."""
        while self._options.idle_s:
            await asyncio.sleep(min(5.0, self._options.idle_s))
            now = time.monotonic()
            for entry in self.entries.values():
                if entry.llm is not None and not entry.users and now - entry.used_at > self._options.idle_s:
                    await self.drop(entry)

    async def close(self, wait_s: float) -> None:
        """Release all models; running texts have `wait_s` seconds."""
        loaded = [entry.llm for entry in self.entries.values() if entry.llm is not None]
        for entry in self.entries.values():
            entry.llm = None
        await asyncio.gather(*(asyncio.to_thread(_release, llm, wait_s) for llm in loaded))


def _release(llm: LLM, wait_s: float) -> None:
    llm.close(wait_s)
    llm.model.close()
