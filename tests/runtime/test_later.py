"""Modules that a warm start does without."""

from __future__ import annotations

import sys

from kernmill.runtime import later


def test_what_is_asked_for_is_the_module() -> None:
    assert later.compiling is sys.modules["kernmill.runtime.programs.compiling"]
    assert not hasattr(later, "ops_llvm")
