"""class Profile: what a program did, in rows, totals and reasons; and the block that makes one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from kernmill.ir import cached_property
from kernmill.runtime import Note, Recorder, recording_profile

from .notebook import profile_html
from .rows import KernelRow, Totals, rows_of, totals_of
from .table import notes_text, table_text, totals_text, wrapped

__all__ = ["Profile", "profile"]


class Profile:
    """The events of one block. `str` gives the table; the work of kernels is estimated when it is first needed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @cached_property
    def rows(self) -> list[KernelRow]:
        """A row for each kernel at each line, those that took longest first."""
        return rows_of(self.recorder)

    @cached_property
    def totals(self) -> Totals:
        """The parts of the wall time. Units: ns."""
        return totals_of(self.recorder, self.rows)

    @property
    def notes(self) -> list[Note]:
        """Captures and plans, with their reasons."""
        return self.recorder.notes

    def text(self, most: int = 20, width: int | None = None) -> str:
        """Return the table of up to `most` rows, the totals, and what was made again."""
        totals = wrapped(totals_text(self.totals), width)
        if not self.rows:
            return f"no kernel was launched\n{totals}"
        parts = table_text(self.rows, most, width), totals, wrapped(notes_text(self.notes), width)
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return profile_html(self.rows, self.totals, self.notes)

    def __str__(self) -> str:
        return self.text()


@contextmanager
def profile() -> Generator[Profile]:
    """Profile everything that the block launches: `with kernmill.profile() as p: ...`, then `print(p)`.

    Launches run as they do without it, and each is timed. On a device that works by itself, such as a GPU, each batch
    of launches is waited for.
    """
    with recording_profile() as recorder:
        yield Profile(recorder)
