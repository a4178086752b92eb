"""Rows of machines: nonsense is refused, caches come from the host, and a row is part of every cache key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernmill.ir import GENERIC, MACHINES, Level, SettingError, Target
from kernmill.runtime import opening


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "4", None, True])
def test_nonsense_is_refused(value: Any) -> None:
    with pytest.raises(SettingError) as error:
        replace(GENERIC, fma=value)
    assert str(error.value) == f"machine generic: fma is {value!r}; it must be a positive number."


def test_levels_are_checked() -> None:
    with pytest.raises(SettingError, match=r"machine generic: levels is empty; it must have at least one cache\."):
        replace(GENERIC, levels=())
    for value in (None, 5, True, "4", (5,), [Level("L2", 1 << 15, 32.0, 1.0)]):
        with pytest.raises(SettingError, match=r"machine generic: levels is .*; it must be a tuple of Level\."):
            replace(GENERIC, levels=value)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"must have positive numbers\."):
        replace(GENERIC, levels=(Level("L2", 0, 1.0, 1.0),))
    with pytest.raises(SettingError, match=r"must have positive numbers\."):
        replace(GENERIC, levels=(Level("L2", 1 << 15, "32", 1.0),))  # type: ignore[arg-type]


def test_caches_come_from_the_host() -> None:
    row = GENERIC.with_caches((48 << 10, 2 << 20, 0))
    assert [level.size_bytes for level in row.levels] == [48 << 10, 2 << 20, GENERIC.levels[2].size_bytes]


def test_names() -> None:
    assert all(row.name == name for name, row in MACHINES.items())


def test_a_row_is_part_of_the_cache_key() -> None:
    """The bits of results depend on a schedule, and a schedule may depend on any figure."""
    one, other = Target("x"), Target("x", machine=replace(GENERIC, latency=5.5))
    assert opening.target_text(one) != opening.target_text(other)
