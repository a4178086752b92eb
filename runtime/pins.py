"""Pins: the setting PIN, patterns of source lines and layers that give what these compute a device.

A pattern is searched in the text that messages name a node by: `train.py:41 in Net.blocks.3.attn.q, backward`. The
first pattern that is found decides. Names of patterns that no graph has are printed when the process ends: a pin that
does nothing is a mistake. Tests: tests/runtime/test_pins.py.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable
from functools import cache

from kernmill.ir import Pin, SettingError, at_fork, pin_of, setting

from .device import canonical_name, device_list

__all__ = ["pinned_nodes", "pins"]

_given: dict[str, None] = {}  # patterns, in the order of their first use
_found: set[str] = set()


def pins() -> tuple[Pin, ...]:
    """The pins of the setting PIN.

    Raises:
        SettingError: a pin names a device that is not in the setting DEVICE.
    """
    text = str(setting("PIN"))
    return _pins(text, device_list()) if text else ()


@cache
def _pins(text: str, listed: tuple[str, ...]) -> tuple[Pin, ...]:
    parts = [part.rpartition("=") for part in text.split(";")]
    found = [Pin(pattern, canonical_name(device.strip())) for pattern, _, device in parts]
    for pin in found:
        if pin.device not in listed:
            raise SettingError(
                f"PIN={pin.pattern}={pin.device}: {pin.device} is not a device of DEVICE={','.join(listed)}. Add it to "
                "DEVICE, or pin to one of these."
            )
        _given[pin.pattern] = None
    return tuple(found)


def pinned_nodes(origins: Iterable[str | None]) -> tuple[tuple[int, Pin], ...]:
    """The nodes of a graph that pins decide, by position; `origins` are those of all nodes."""
    wanted = pins()
    if not wanted:
        return ()
    found = [(number, pin) for number, origin in enumerate(origins) if (pin := pin_of(wanted, origin)) is not None]
    _found.update(pin.pattern for _, pin in found)
    return tuple(found)


def _say_unused() -> None:
    """Print the patterns that no graph of this process had."""
    for pattern in _given:
        if pattern not in _found:
            print(
                f"PIN: {pattern!r} matched nothing that was computed. Patterns are searched in names such as "
                "'train.py:41 in Net.blocks.3'; `kernmill explain` prints those of a program.",
                file=sys.stderr,
            )


atexit.register(_say_unused)
at_fork(after_in_child=_given.clear)
