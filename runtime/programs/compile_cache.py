"""Compiled kernels on disk: text + target -> binary, found again by content.

One file an entry, `<folder>/v2/<device>/<ab>/<key>`: magic, format version, sizes, JSON header, payload, BLAKE2 over
all of it. No pickle, no index, no lock: a file appears whole by `os.replace` or not at all, so a killed process leaves
at worst a temporary file. Damage is a miss and deletes the file; a disk that is full or read-only means no cache, never
an error. A hash does not stop an attacker with write access, and an entry is machine code. So the folder, each folder
inside and each entry must be owned by this user and not writable by others, or they are ignored. An entry is opened as
a regular file of limited size: a pipe, a device or a link is a miss.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from kernmill.ir import LazyModule, blake2b, setting

from ..memory.allocator import round_up

__all__ = ["CacheEntry", "CompileCache", "cache_key", "default_cache", "default_cache_folder"]

_MAGIC = b"KMCACHE\0"
_VERSION = 2  # raise it when the format of entries changes: earlier ones are then of an older version, not damaged
_OLDER = tuple(_MAGIC + version.to_bytes(4, "little") for version in range(1, _VERSION))
_HEAD = struct.Struct("<8sIIQ32s")  # magic, version, header bytes, payload bytes, key
_DIGEST_BYTES = 32
_digest = functools.partial(blake2b, digest_size=_DIGEST_BYTES)
_TEMPORARY = ".tmp-"
_TOUCH_S = 3600  # a hit renews the time stamp at most this often: a write per read would cost more than the read
_STALE_S = 3600  # a temporary file of this age has lost its writer
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_MOST_BYTES = 128 << 20  # of an entry: no object that is loaded is as large
_OPEN_TO_OTHERS = 0o022  # bits of a mode: writable by others

_json: Any = LazyModule("json")
_logging: Any = LazyModule("logging")  # as rare as slow to import
_platformdirs: Any = LazyModule("platformdirs")
_warned: set[str] = set()


class CacheEntry(NamedTuple):
    """A stored entry: a small JSON header and the bytes."""

    header: dict[str, object]
    payload: bytes


def cache_key(*parts: str | bytes) -> str:
    """Hash the parts with BLAKE2, each with its length, so that no two lists of parts collide by concatenation."""
    digest = _digest()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


class CompileCache:
    """A cache folder. `folder=None` is a cache that is always empty. Safe with threads and processes."""

    def __init__(
        self, folder: str | None, max_bytes: int = 1 << 30, *, device: str = "llvm", read_only: bool = False
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.device = device
        self.read_only = read_only
        self.hits = self.misses = self.puts = 0
        self._usable: bool | None = None if folder else False
        self._private: set[str] = set()  # folders inside, that were found to be ours alone

    def get(self, key: str) -> CacheEntry | None:
        """The entry, or None. A damaged file is deleted and counts as a miss."""
        path = self._path(key)
        entry = None if path is None or not self._is_private(os.path.dirname(path)) else self._entry_at(path, key)
        self.hits += entry is not None
        self.misses += entry is None
        return entry

    def _entry_at(self, path: str, key: str) -> CacheEntry | None:
        try:
            raw, age_s = _read_file(path)
        except OSError:
            return None
        entry = None if raw is None else _decode(raw, key)
        if entry is None and raw is not None:
            self._try(os.unlink, path)
        elif age_s > _TOUCH_S:
            self._try(os.utime, path)
        return entry

    def put(self, key: str, payload: bytes, header: Mapping[str, object]) -> None:
        """Store an entry. A failure to write is not an error: the cache is then without it."""
        path = self._path(key)
        if path is None or self.read_only or not self._is_private(os.path.dirname(path)):
            return
        raw = _encode(key, payload, header)
        folder = os.path.dirname(path)
        temporary = f"{folder}/{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        try:
            try:
                _write_file(temporary, raw)
            except FileNotFoundError:
                self._make_folders(folder)
                _write_file(temporary, raw)
            os.replace(temporary, path)
        except OSError as error:
            self._try(os.unlink, temporary)
            _warn(
                str(self.folder), f"cannot write to kernel cache {self.folder} ({error.strerror}); no kernel is added"
            )
            return
        self.puts += 1
        self._maybe_evict(len(raw))

    def verify(self) -> tuple[int, int, int]:
        """Read every entry: return how many are valid, of an older version, and damaged (only valid ones are kept)."""
        whole = older = damaged = 0
        for path, _ in self._files():
            name = os.path.basename(path)
            try:
                raw, _age = _read_file(path)
            except FileNotFoundError:
                continue  # another process evicted it meanwhile
            except OSError:
                raw = b""
            if raw is not None and _is_key(name) and _decode(raw, name) is not None:
                whole += 1
                continue
            is_older = raw is not None and raw.startswith(_OLDER)
            older, damaged = older + is_older, damaged + (not is_older)
            self._try(os.unlink, path)
        return whole, older, damaged

    def clear(self) -> int:
        """Delete every entry; returns how many there were."""
        files = list(self._files(stale_s=0))
        for path, _ in files:
            self._try(os.unlink, path)
        return len(files)

    def info(self) -> dict[str, object]:
        """Folder, number of entries, bytes on disk, cap, and this process's counters."""
        files = list(self._files())
        return {
            "folder": self.folder, "usable": self._open(), "read_only": self.read_only, "entries": len(files),
            "size_bytes": sum(status.st_size for _, status in files), "max_bytes": self.max_bytes,
            "hits": self.hits, "misses": self.misses, "puts": self.puts,
        }  # fmt: skip

    # --- inside ---------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str | None:
        if not _is_key(key):
            raise ValueError(f"cache key {key!r}: expected 64 hex digits, as cache_key() gives them.")
        if not (self._usable or self._open()):
            return None
        return f"{self.folder}/v{_VERSION}/{self.device}/{key[:2]}/{key}"

    def _open(self) -> bool:
        if self._usable is None:
            self._usable = _claim(str(self.folder), create=not self.read_only)
        return self._usable

    def _inside(self, folder: str) -> list[str]:
        """The folders from below the cache's own to this one."""
        parts = folder[len(str(self.folder)) + 1 :].split("/")
        return ["/".join([str(self.folder), *parts[: count + 1]]) for count in range(len(parts))]

    def _make_folders(self, folder: str) -> None:
        for path in self._inside(folder):  # os.makedirs gives the mode to the last one only
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)

    def _is_private(self, folder: str) -> bool:
        """True if no other user may write this folder, or one between it and the cache's own; or if it does not
        exist. If no other user can enter the cache's own folder, the modes of those inside do not matter."""
        if folder in self._private:
            return True
        try:
            if stat.S_IMODE(os.stat(str(self.folder)).st_mode) & 0o077:
                for path in self._inside(folder):
                    if not _is_ours(status := os.lstat(path)) or not stat.S_ISDIR(status.st_mode):
                        _warn_of_writers(path)
                        return False
            else:
                os.stat(folder)
        except OSError:
            return True  # it will be made, or nothing can be read there
        self._private.add(folder)
        return True

    def _try(self, action: Callable[[str], object], path: str) -> None:
        if not self.read_only:
            with contextlib.suppress(OSError):
                action(path)

    def _files(self, stale_s: float = _STALE_S) -> Iterator[tuple[str, os.stat_result]]:
        """Every entry, also of older versions. Temporary files older than `stale_s` are removed on the way."""
        if not self._open():
            return
        now = time.time()
        versions = [f"{self.folder}/v{version}" for version in range(1, _VERSION + 1)]
        for item in (item for folder in versions for item in _walk(folder, depth=2)):
            try:
                status = item.stat(follow_symlinks=False)
            except OSError:
                continue
            if not item.name.startswith(_TEMPORARY):
                yield item.path, status
            elif now - status.st_mtime >= stale_s:
                self._try(os.unlink, item.path)

    def _maybe_evict(self, written: int) -> None:
        """Check the size of the whole folder once for about every sixteenth of the limit written, by all processes
        together.

        A random draw instead of a counter: a thousand processes that store one kernel each must not exceed the limit
        either.
        """
        if int.from_bytes(os.urandom(4), "little") * self.max_bytes < 16 * written << 32:
            self.evict()

    def evict(self) -> int:
        """Delete the least recently used entries if the cap is passed, down to nine tenths of it; how many."""
        files = sorted(((s.st_mtime, round_up(s.st_size, 4096), path) for path, s in self._files()), reverse=True)
        total = sum(size for _, size, _ in files)
        if total <= self.max_bytes:
            return 0
        gone = 0
        while files and total > self.max_bytes * 9 // 10:
            _, size, path = files.pop()
            self._try(os.unlink, path)
            total -= size
            gone += 1
        return gone


def default_cache_folder() -> str:
    """Return the user's cache folder for kernmill, by the conventions of the system."""
    if sys.platform.startswith("linux"):  # as platformdirs, without its 16 ms
        base = os.environ.get("XDG_CACHE_HOME", "")
        return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "kernmill")
    return str(_platformdirs.user_cache_dir("kernmill", appauthor=False))


def default_cache(kind: str = "llvm") -> CompileCache:
    """Return the cache of the settings `CACHE`, `CACHE_DIR`, `CACHE_MAX_MB`; `kind` is the folder inside it."""
    return _cache_for(str(setting("CACHE")), str(setting("CACHE_DIR")), int(setting("CACHE_MAX_MB")), kind)


@functools.cache
def _cache_for(mode: str, folder: str, max_mb: int, kind: str) -> CompileCache:
    where = None if mode == "0" else folder or default_cache_folder()
    return CompileCache(where, max_mb << 20, device=kind, read_only=mode == "ro")


# --- one file ---------------------------------------------------------------------------------------------------------


def _encode(key: str, payload: bytes, header: Mapping[str, object]) -> bytes:
    text = _json.dumps(dict(header), separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(text), len(payload), bytes.fromhex(key))
    body = b"".join((head, text, payload))
    return body + _digest(body).digest()


def _decode(raw: bytes, key: str) -> CacheEntry | None:
    if len(raw) < _HEAD.size + _DIGEST_BYTES:
        return None
    magic, version, header_bytes, payload_bytes, stored_key = _HEAD.unpack_from(raw)
    start = _HEAD.size + header_bytes
    end = start + payload_bytes
    if (magic, version, stored_key) != (_MAGIC, _VERSION, bytes.fromhex(key)) or end + _DIGEST_BYTES != len(raw):
        return None
    if _digest(memoryview(raw)[:end]).digest() != raw[end:]:
        return None
    try:
        header: Any = _json.loads(raw[_HEAD.size : start])
    except ValueError:
        return None
    return CacheEntry(cast("dict[str, object]", header), raw[start:end]) if isinstance(header, dict) else None


def _read_file(path: str) -> tuple[bytes | None, float]:
    """Return content and age in seconds; None if it is not a regular file of this user."""
    with open(path, "rb", buffering=0, opener=_opened) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _is_ours(status) or status.st_size > _MOST_BYTES:
            return None, 0.0
        return file.read(status.st_size), time.time() - status.st_mtime


def _is_ours(status: os.stat_result) -> bool:
    """True if this user owns it and no other user may write it."""
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & _OPEN_TO_OTHERS)


def _write_file(path: str, raw: bytes) -> None:
    with open(path, "xb", opener=_opened) as file:
        file.write(raw)


def _opened(path: str, flags: int) -> int:
    """Open a file without following links or waiting for pipes; new files are closed to others."""
    return os.open(path, flags | _FLAGS, 0o600)


def _is_key(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def _walk(folder: str, depth: int) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            for item in items:
                if not depth:
                    yield item
                elif item.is_dir(follow_symlinks=False):
                    yield from _walk(item.path, depth - 1)
    except OSError:
        return


def _claim(folder: str, create: bool) -> bool:
    """True if no other user may access the folder; create it if it does not exist."""
    try:
        if create:
            os.makedirs(folder, 0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError as error:
        if create:
            _warn(
                folder,
                f"no kernel cache: {folder} cannot be created ({error.strerror}); set CACHE_DIR to a different folder",
            )
        return False
    if not stat.S_ISDIR(status.st_mode):
        _warn(folder, f"no kernel cache: {folder} is not a folder; set CACHE_DIR to one")
        return False
    if not _is_ours(status):
        _warn_of_writers(folder)
        return False
    return True


def _warn_of_writers(folder: str) -> None:
    _warn(
        folder,
        f"no kernel cache: other users can write to {folder} and could inject code; "
        f"run: chmod 700 {folder} (and own it), or set CACHE_DIR",
    )


def _warn(folder: str, text: str) -> None:
    if folder not in _warned:
        _warned.add(folder)
        _logging.getLogger("kernmill").warning("%s", text)
