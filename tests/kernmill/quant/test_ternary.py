"""Q1_0, Q2_0, TQ1_0 and TQ2_0: read as written down and as the package does, written bit for bit where it writes."""

from __future__ import annotations

import pytest

from kernmill.quant.ternary import BLOCKS

from . import against

NAMES = [block.name for block in BLOCKS]
BOTH = ["TQ1_0", "TQ2_0"]  # the package has these


@pytest.mark.parametrize("name", NAMES)
def test_read(name: str) -> None:
    against.check_read(name)
    if name in BOTH:
        against.check_read_as_the_package(name)


@pytest.mark.parametrize("name", BOTH)
def test_write(name: str) -> None:
    against.check_write_as_the_package(name, against.weights(name))
    x = against.normal(name).round().clip(-1, 1)
    assert against.relative_error(name, x) == 0
