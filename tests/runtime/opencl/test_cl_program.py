"""Builds that fail say where; stored programs come back whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.ir import CompileError
from kernmill.runtime import cl_program, get_device

SOURCE = "line one\n  float x = y;\nline three"


@pytest.mark.parametrize(
    "log",
    [
        "error: /tmp/tempfile_1.cl:2:13: use of undeclared identifier 'y'",
        "<kernel>:2:13: error: use of undeclared identifier 'y'\n 1 error generated",
    ],
)
def test_the_line_that_the_log_names_is_shown(log: str) -> None:
    text = cl_program.explain_build(
        "sum_4", SOURCE, "-w", f"Build on device:\n\n{log}\n(source saved as /tmp/x.cl)", "H200"
    )
    assert text.startswith("kernel sum_4: the driver of H200 rejected the source (options: -w): use of undeclared")
    lines = text.splitlines()
    assert lines[1] == "    2 |   float x = y;"
    assert lines[2].index("^") == lines[1].index("y;")


def test_a_log_without_a_place_is_shown_as_it_is() -> None:
    text = cl_program.explain_build("k", SOURCE, "", "out of registers\nsorry", "H200")
    assert text.splitlines()[1:] == ["out of registers", "sorry", cl_program._REMEDY]


def test_an_empty_log_has_a_known_cause() -> None:
    assert "install libnvidia-nvvm" in cl_program.explain_build("k", SOURCE, "", "BUILD_PROGRAM_FAILURE", "H200")


def test_packed_and_unpacked() -> None:
    assert cl_program.unpack_program(cl_program.pack_program("sin(ä)", b"\0\1")) == ("sin(ä)", b"\0\1")
    assert cl_program.unpack_program(cl_program.pack_program("", b"")) == ("", b"")


class Refusal(Exception):
    """The binding's error."""


def test_options_are_tried_in_order_and_no_copy_of_the_source_stays(tmp_path: Path) -> None:
    copy = tmp_path / "saved.cl"
    copy.write_text(SOURCE)
    tried: list[str] = []

    class Program:
        def __init__(self, context: Any, source: str) -> None:
            self.source = source

        def build(self, options: str, devices: list[Any]) -> str:
            tried.append(options)
            if options != "good":
                raise Refusal(f"failed\n:2:3: error: no\n(source saved as {copy})")
            return "built"

    cl = SimpleNamespace(Program=Program, Error=Refusal)
    device = SimpleNamespace(name="H200")
    assert cl_program.build_program(cl, None, device, SOURCE, ("lean", "good"), "k") == "built"
    assert tried == ["lean", "good"]
    assert not copy.exists()
    with pytest.raises(CompileError, match="float x = y"):
        cl_program.build_program(cl, None, device, SOURCE, ("lean",), "k")


# --- as a driver has them ---------------------------------------------------------------------------------------------
@pytest.fixture
def with_binaries(opencl: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device, whose driver is asked for binaries: of PoCL only the source is kept."""
    device: Any = get_device(opencl)
    monkeypatch.setattr(device, "facts", replace(device.facts, platform="Boards"))
    return device


def test_a_binary_is_loaded_without_its_source(with_binaries: Any) -> None:
    source = "__kernel void k(__global float *b, long o, long chunk) { b[0] = 1.0f; }"
    text, binary = cl_program.unpack_program(with_binaries.compile("k", source))
    assert text == source
    assert binary
    assert with_binaries.load("k", cl_program.pack_program("no source", binary)).name == "k"


def test_a_binary_that_the_driver_refuses_is_built_again(with_binaries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = with_binaries
    real = device.cl
    source = "__kernel void k(__global float *b, long o, long chunk) { b[0] = 1.0f; }"

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def Program(self, context: Any, what: Any, binaries: Any = None) -> Any:
            if binaries is not None:
                raise real.LogicError("INVALID_BINARY")
            return real.Program(context, what)

    stored = device.compile("k", source)
    monkeypatch.setattr(device, "cl", Refusing())
    assert device.load("k", stored).name == "k"
