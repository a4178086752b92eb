"""Every test of the front runs on each device, which is the default one for its time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernmill import Context, manual_seed


@pytest.fixture(autouse=True)
def on_device(device: str) -> Iterator[str]:
    with Context(DEVICE=device):
        manual_seed(7)
        yield device
