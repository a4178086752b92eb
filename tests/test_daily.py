"""The table of the daily run names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.daily import DAILY_CASES

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", DAILY_CASES)
def test_a_row_names_a_test(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^def {function}\(", (TESTS / file).read_text(), re.MULTILINE)
