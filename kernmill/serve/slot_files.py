"""POST /slots/N?action=save, restore or erase: what a slot holds of a text, in a file of the server's folder."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from kernmill.ir import FormatError

from ..llm.engine import Engine, SlotBusy
from .errors import RequestError, invalid

__all__ = ["act_on_slot"]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def act_on_slot(engine: Engine, number: int, action: str, name: str | None, folder: str | None) -> dict[str, Any]:
    """Save, restore or erase the text of a slot; return the answer as llama-server has it.

    Raises:
        RequestError: an unknown action, a name that is not one of a file, no folder, or a slot with a running text.
        KernmillError: an unknown or empty slot, or a file that does not fit.
    """
    if action not in ("save", "restore", "erase"):
        raise invalid("action", "must be save, restore or erase.")
    start = time.perf_counter()
    try:
        if action == "erase":
            return {"id_slot": number, "n_erased": engine.erase_slot(number)}
        path = _path(name, folder, action)
        try:
            count = engine.save_slot(number, path) if action == "save" else engine.restore_slot(number, path)
        except FormatError as error:
            raise invalid("filename", str(error).replace(path, str(name))) from error
    except SlotBusy as error:
        raise RequestError(503, str(error), code="busy", headers={"Retry-After": "1"}) from error
    counted, moved = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    return {
        "id_slot": number, "filename": name, counted: count, moved: os.path.getsize(path),
        "timings": {f"{action}_ms": round((time.perf_counter() - start) * 1e3, 3)},
    }  # fmt: skip


def _path(name: str | None, folder: str | None, action: str) -> str:
    if folder is None:
        raise RequestError(501, "The server keeps no slots. Start it with --slot-save-path FOLDER.", param="action")
    if name is None or not _NAME.fullmatch(name):
        raise invalid("filename", "must be 1 to 128 letters, digits, or . _ -, and not begin with a dot.")
    path = Path(folder, name)
    if path.is_symlink() or (action == "restore" and not path.is_file()):
        raise RequestError(404, f"There is no file {name}.", param="filename", code="not_found")
    return str(path)
