"""The resident program: commands have numbers of their own, and each is one of its cases."""

from __future__ import annotations

from kernmill.runtime import resident


def test_every_command_is_a_case() -> None:
    text = resident.resident_ir()
    switch = text[text.index("switch i32 %op") :].split("]")[0]
    for command in resident.Command:
        assert f"i32 {command:d}, label" in switch


def test_kernels_are_within_reach_of_a_call() -> None:
    assert resident.CODE_BYTES < 1 << 23
