"""Whether somebody wants the times of kernels."""

from __future__ import annotations

from kernmill import Context, Tensor
from kernmill.runtime import collecting_kernels, is_quiet, wants_report, watcher


def test_settings_and_blocks_ask_for_reports() -> None:
    assert not wants_report()
    with Context(DEBUG=2):
        assert (is_quiet(), watcher(), wants_report()) == (False, None, True)
    with collecting_kernels() as outer:
        assert (is_quiet(), watcher() is not None, wants_report()) == (True, True, True)
        with collecting_kernels() as inner:
            (Tensor([1.0, 2.0]) * 5.0).realize()
        assert len(inner) == 1
        assert not outer
    assert not wants_report()
