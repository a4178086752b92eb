"""Files are read on the default device: what is in them does not depend on it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_device() -> str:
    """Instead of the front's fixture; a test that takes `device` runs on each."""
    return "the default device"
