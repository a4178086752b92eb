"""Object bytes in, callable addresses out: our ELF loader where it works, LLVM's linker elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from kernmill.ir import FormatError

from .elf import ElfModule, is_elf_host, load_elf
from .llvm_codegen import llvm_binding

__all__ = ["load_object"]

_serial = itertools.count()  # LLJIT never takes a library name twice
_lljit: Any = None


def load_object(
    data: bytes, names: Iterable[str], externs: Mapping[str, int] | None = None, *, use_lljit: bool | None = None
) -> ElfModule:
    """Load an object so that `names` can be called. `use_lljit` forces or forbids LLVM's linker (for tests).

    Raises:
        FormatError: the object is damaged, or lacks one of the names.
    """
    wanted = tuple(names)
    is_elf = is_elf_host() if use_lljit is None else not use_lljit
    module = load_elf(data, externs) if is_elf else _load_lljit(data, wanted, externs or {})
    missing = [name for name in wanted if name not in module.symbols]
    if missing:
        raise FormatError(f"load_object: the object does not define {', '.join(missing)}. Clear the cache.")
    return module


def _load_lljit(data: bytes, names: tuple[str, ...], externs: Mapping[str, int]) -> ElfModule:
    global _lljit
    binding = llvm_binding()
    if _lljit is None:
        _lljit = binding.create_lljit_compiler()
    builder = binding.JITLibraryBuilder().add_object_img(data).add_current_process()
    for name, address in externs.items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(name)
    try:
        tracker = builder.link(_lljit, f"kernmill{next(_serial)}")
    except RuntimeError as error:
        raise FormatError(f"load_object: LLVM cannot link the object: {error}. Clear the cache.") from None
    return ElfModule({name: int(tracker[name]) for name in names}, keep=tracker)
