"""Finding devices: by name, by number, from outside of the tree; and what the contract promises by default."""

from __future__ import annotations

import importlib.metadata
import itertools
import struct
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.commands import device_parts
from kernmill.ir import Context, DeviceError, Ops, OutOfMemoryError, Target, dtypes, elementwise, reduce_axes, reshape
from kernmill.renderers import PYTHON_OPS, PythonRenderer, Renderer
from kernmill.runtime import (
    Call,
    Device,
    Program,
    Properties,
    canonical_name,
    device_names,
    download,
    get_device,
    realize,
    upload,
)  # fmt: skip

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/add-a-device.md").read_text(encoding="utf-8")


class AbacusDevice(Device):
    """A device from outside of the tree: scalars, one thread, lists for memory."""

    CONTRACT = 1
    description = "beads"
    opened = 0

    def __init__(self, name: str, index: int = 0) -> None:
        super().__init__(name, index)
        AbacusDevice.opened += 1
        self.calls = 0

    @property
    def renderer(self) -> Renderer:
        return PythonRenderer(Target("abacus", ops=PYTHON_OPS))

    def compile(self, name: str, source: str) -> bytes:
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        scope: dict[str, Any] = {"f32": lambda v: struct.unpack("f", struct.pack("f", v))[0]}
        exec(binary.decode(), scope)
        return Program(name, scope[name])

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        for call in calls:
            arrays = [buffer.host_array() for buffer in call.buffers]
            lists = [array.tolist() for array in arrays]
            call.program.handle(*lists, *call.variables, 0, call.threads)
            for array, values in zip(arrays, lists, strict=True):
                array[:] = values
            self.calls += 1
        return [1] * len(calls) if is_timed else []

    @classmethod
    def devices(cls) -> list[int]:
        return [0, 1]


def announce(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """As if a package with this entry point were installed."""
    entry = importlib.metadata.EntryPoint(name, value, "kernmill.devices")
    real: Callable[..., Any] = importlib.metadata.entry_points

    def found(**given: Any) -> Any:
        is_ours = given.get("group") == "kernmill.devices"
        return importlib.metadata.EntryPoints([entry]) if is_ours else real(**given)

    monkeypatch.setattr(importlib.metadata, "entry_points", found)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, closed_devices: None) -> type[AbacusDevice]:
    """An installed package that announces the device."""
    module = types.ModuleType("beads")
    module.AbacusDevice = AbacusDevice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "beads", module)
    announce(monkeypatch, "ABACUS", "beads:AbacusDevice")
    return AbacusDevice


def sums_of_squares(device: str) -> None:
    x = reshape(upload(np.arange(12, dtype=np.float32), dtypes.float32, device), (3, 4))
    root = reduce_axes(elementwise(Ops.MUL, x, x) + 1.0, Ops.ADD, (1,))
    realize([root])
    np.testing.assert_array_equal(download(root), (np.arange(12).reshape(3, 4) ** 2 + 1.0).sum(1))


def test_a_device_from_outside_runs_kernels(outside: type[AbacusDevice]) -> None:
    assert "ABACUS" in device_names()
    sums_of_squares("ABACUS")
    machine = get_device("abacus")
    assert isinstance(machine, outside)
    assert machine.calls == 1


def test_it_can_be_the_default(outside: type[AbacusDevice]) -> None:
    with Context(DEVICE="ABACUS"):
        assert isinstance(get_device(), outside)


def test_nothing_is_opened_before_it_is_used(outside: type[AbacusDevice]) -> None:
    before = outside.opened
    device_names()
    assert outside.opened == before
    assert get_device("ABACUS") is get_device("abacus:0")
    assert outside.opened == before + 1
    assert get_device("ABACUS:1").index == 1


def test_a_number_that_is_not_there(outside: type[AbacusDevice]) -> None:
    with pytest.raises(DeviceError, match=r"device 'ABACUS:9': not found\. Available: ABACUS, ABACUS:1\. "):
        get_device("ABACUS:9")
    with pytest.raises(DeviceError, match=r"device 'LLVM:9': not found\. Available: LLVM\. "):
        get_device("LLVM:9")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=r"device 'TPU': not found\. Available:.* CL, CUDA, HTP, LLVM, NULL, PYTHON"):
        get_device("tpu")


@pytest.mark.parametrize("name", ["", ":", ":1", "LLVM:x", "LLVM:-1", "LLVM:1:2", "LLVM:²"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(DeviceError, match="expected a device name such as LLVM or LLVM:1"):
        canonical_name(name)


@pytest.mark.parametrize("name", ["../ops", "llvm/../llvm", "LLVM ", "ops_llvm", "*"])
def test_names_are_no_paths(name: str) -> None:
    with pytest.raises(DeviceError):
        get_device(name)


def test_a_package_without_such_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "empty", types.ModuleType("empty"))
    announce(monkeypatch, "HOLLOW", "empty:Hollow")
    with pytest.raises(DeviceError, match="empty has no class Hollow that is a Device"):
        get_device("HOLLOW")


def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, "GONE", "no_such_module_here:Gone")
    with pytest.raises(DeviceError, match="no_such_module_here"):
        get_device("GONE")


def test_one_name_is_one_device() -> None:
    assert canonical_name("llvm:0") == canonical_name("LLVM") == "LLVM"
    assert canonical_name("llvm:01") == "LLVM:1"
    assert get_device("llvm") is get_device("LLVM:0")


def test_the_defaults_of_the_contract(device: str) -> None:
    machine = get_device(device)
    props = machine.props()
    assert props.alignment >= 16
    assert props.is_host_visible
    assert machine.cache_tag()
    assert machine.target is machine.renderer.target
    event = machine.event()
    event.record()
    event.wait()
    node = upload(np.zeros(3, np.float32), dtypes.float32, device)
    assert machine.supports(Ops.ADD, node)


def test_the_page_for_authors_names_the_whole_contract() -> None:
    """It left out what compiles many kernels at once, and `class Device` had seven names that nothing asked for."""
    names = [name for name in (*vars(Device), *Properties._fields) if not name.startswith("_")]
    assert [name for name in names if f"`{name}" not in PAGE] == []


def modules_of_the_page() -> dict[str, str]:
    """The code of each module on the page, by name: what is indented after `` `name.py`: ``, up to the next text."""
    found: dict[str, str] = {}
    for part in PAGE.split('\n\n    """')[1:]:
        lines = itertools.takewhile(lambda line: not line or line.startswith("    "), f'    """{part}'.splitlines())
        code = textwrap.dedent("\n".join(lines))
        found[code.split('"""')[1].split()[0].strip(":").lower()] = code
    return found


@pytest.mark.parametrize("name", ["COPPER", "CARD", "LATER"])
def test_the_devices_of_the_page_work(far: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each step of the page: the dot product, then memory, copies, order, threads."""
    for module_name, code in modules_of_the_page().items():
        module = types.ModuleType(module_name)
        monkeypatch.setitem(sys.modules, module_name, module)
        exec(code, module.__dict__)
    cls = getattr(sys.modules[name.lower()], f"{name.capitalize()}Device")
    far.announce(name, cls)
    other = get_device(f"{name}:1?mib=8" if name != "COPPER" else name).name
    sums_of_squares(name)
    assert device_parts.failures(name) == {}
    if name != "COPPER":
        assert (Tensor([1.0, 2.0], device=name).to(other) + 1).to("LLVM").tolist() == [2, 3]
        with pytest.raises(OutOfMemoryError, match=rf"{name}:1: .* of 8\.0 MiB"):
            Tensor.ones(4, 1 << 20, device=other).contiguous().realize()


def test_chunks_of_a_call() -> None:
    def chunk(work_ns: float, threads: int) -> int:
        return Call(Program("k", None, threads, work_ns), (), (), threads).chunk(20_000.0, 40_000.0, 64)

    assert chunk(1e9, 1) == 1
    assert chunk(100.0, 1000) == 1000  # too little work for two
    assert -(-1000 // chunk(1e9, 1000)) <= 64
    assert chunk(1e6, 1000) == 21


_SUB = """
import warnings, sys
import _xxsubinterpreters as interpreters
number = interpreters.create()
code = "from kernmill import Tensor\\nprint((Tensor.ones(3) + 1).sum().item())"
try:
    interpreters.run_string(number, code)
except interpreters.RunFailedError as error:
    print(error)
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="later NumPy refuses sub-interpreters itself")
def test_a_sub_interpreter_is_refused_and_the_process_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SUB], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0
    assert "this is sub-interpreter 1 of the process" in done.stdout
    assert "Use the main interpreter, or another process." in done.stdout
