"""`kernmill profile`: run a program, and show which of its lines took the time, and what they became."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..profiling import profile
from .program import run_program

__all__ = ["run"]


def run(program: str, arguments: Sequence[str], *, most: int) -> int:
    """Run the program and print the table of at most `most` rows. Returns 1 if the program failed.

    Raises:
        KernmillError: the program cannot be found.
    """
    with profile() as found:
        ended_well = run_program("profile", program, arguments, "what it launched is still shown")
    sys.stdout.flush()
    print(f"\n{found.text(most)}")
    return 0 if ended_well else 1
