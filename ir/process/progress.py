"""Progress bars: of long compiles, searches, loads, quantizations and trainings.

They are drawn by tqdm (extra `progress`), on a terminal or in a notebook, and only by what takes longer than half a
second. Without tqdm, or where stderr is a file or a pipe, nothing is printed. Tests: tests/ir/process/test_progress.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .settings import setting

__all__ = ["Progress"]

_DELAY_S = 0.5


class Progress:
    """A bar with `total` steps: `with Progress("epoch 1", 468) as bar: ... bar.advance(text="loss 0.12")`.

    It is drawn on a terminal or in a notebook, if tqdm is installed (extra `progress`), and is gone after the block.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "step") -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self._bar: Any = None
        self._is_wanted, self._start = _is_shown(), time.monotonic()

    def advance(self, count: int = 1, text: str = "") -> None:
        """Count steps, and show a text next to the bar, such as a loss."""
        self.done += count
        if not self._is_wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._start < _DELAY_S:
                return
            is_drawn = _is_notebook() and importlib.util.find_spec("ipywidgets") is not None
            tqdm: Any = importlib.import_module("tqdm.auto" if is_drawn else "tqdm")  # else it warns, and writes text
            self._bar = tqdm.tqdm(desc=self.what, total=self.total, unit=self.unit, leave=False, file=sys.stderr)
            self._bar.start_t -= time.monotonic() - self._start
            count = self.done
        if text:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(count)

    def above(self, write: Callable[[str], object], line: str) -> None:
        """Call `write` with a line while the bar is away."""
        if self._bar is not None:
            self._bar.clear()
        write(line)
        if self._bar is not None:
            self._bar.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules


def _is_shown() -> bool:
    """True on a terminal or in a notebook, if tqdm is installed and PROGRESS is not 0."""
    if not setting("PROGRESS") or sys.stderr is None:
        return False
    return (_is_notebook() or sys.stderr.isatty()) and importlib.util.find_spec("tqdm") is not None
