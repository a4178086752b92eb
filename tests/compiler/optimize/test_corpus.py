"""Schedules of the corpus: the loops of 182 kernels of the bench set, on machines of several families."""

from __future__ import annotations

import pytest

from tests.compiler.corpus import TARGETS, schedule_lines
from tests.conftest import Golden


@pytest.mark.parametrize("name", TARGETS)
def test_schedules(name: str, golden: Golden) -> None:
    """A change of the optimizer shows here which kernels it changes, and on which machines."""
    assert golden == schedule_lines(TARGETS[name])
