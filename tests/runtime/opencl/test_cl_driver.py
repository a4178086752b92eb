"""Finding OpenCL: the order of devices, and a sentence for everything that can be missing."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.ir import DeviceError
from kernmill.runtime import cl_driver
from tests.runtime.processes import environment, run, start


class FakeError(Exception):
    """The binding's error."""

    code = -1001


def device(name: str, kind: int, **more: Any) -> Any:
    facts = {
        "name": name, "type": kind, "available": True, "compiler_available": True, "profile": "FULL_PROFILE",
        "extensions": "cl_khr_fp64 cl_khr_int64_base_atomics", "version": "OpenCL 3.0", "driver_version": "1.2",
        "global_mem_size": 1 << 30, "max_mem_alloc_size": 1 << 28, "local_mem_size": 1 << 15,
        "max_work_group_size": 256, "max_compute_units": 4, "native_vector_width_float": 8, "host_unified_memory": 1,
        "single_fp_config": 0xFF, "double_fp_config": 0xFF, "global_mem_cache_size": 1 << 20,
    }  # fmt: skip
    return SimpleNamespace(**{**facts, **more})


def platform(name: str, *devices: Any, version: str = "OpenCL 3.0") -> Any:
    made = SimpleNamespace(name=name, version=version, get_devices=lambda: list(devices))
    for one in devices:
        one.platform = made
    return made


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pyopencl whose platforms the test gives."""
    fake = SimpleNamespace(Error=FakeError, get_platforms=list)
    monkeypatch.setattr(cl_driver, "open_binding", lambda: fake)
    monkeypatch.setattr(cl_driver, "_started", [os.getpid()])
    return fake


@pytest.mark.parametrize(("cpu", "lanes"), [("znver3", 8), ("skylake-avx512", 16), ("znver4", 16)])
def test_vectors_where_the_compiler_takes_the_cpu_for_an_older_one(binding: Any, cpu: str, lanes: int) -> None:
    """PoCL 3 on a Zen 4: programs with vectors of 64 bytes had no kernels."""
    version = f"OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-{cpu}"
    one = device("pthread", 2, version=version, native_vector_width_float=16)
    platform("Portable Computing Language", one)
    assert cl_driver.facts_of(one).float_lanes == lanes


def test_gpus_first_and_vendors_before_general_drivers(binding: Any) -> None:
    binding.get_platforms = lambda: [
        platform("Oclgrind", device("simulator", 4)),
        platform("Portable Computing Language", device("pocl", 2)),
        platform("Clover"),
        platform("rusticl", device("mesa", 4)),
        platform("Intel(R) OpenCL", device("xeon", 2)),
        platform("NVIDIA CUDA", device("h200", 4), device("h100", 4)),
        platform("Boards", device("fpga", 8)),
    ]
    names = [found.name for found in cl_driver.found_devices()]
    assert names == ["h200", "h100", "mesa", "fpga", "xeon", "pocl", "simulator"]


def test_without_a_platform_the_remedy_is_named(binding: Any) -> None:
    def none() -> list[Any]:
        raise FakeError("PLATFORM_NOT_FOUND_KHR")

    for listed in (none, list):
        binding.get_platforms = listed
        with pytest.raises(DeviceError, match=r"no OpenCL driver was found.*kernmill\[cl-cpu\].*pocl-opencl-icd"):
            cl_driver.found_devices()


def test_platforms_without_devices_are_named(binding: Any) -> None:
    def broken() -> list[Any]:
        raise FakeError("DEVICE_NOT_FOUND")

    empty = platform("Clover")
    empty.get_devices = broken
    binding.get_platforms = lambda: [platform("Portable Computing Language")]
    with pytest.raises(DeviceError, match=r"offer no device\. PoCL needs a POCL_CACHE_DIR that it can write"):
        cl_driver.found_devices()
    binding.get_platforms = lambda: [empty, platform("rusticl")]
    with pytest.raises(DeviceError, match=r"\(Clover, rusticl\) offer no device.*kernmill\[cl"):
        cl_driver.found_devices()


def test_where_drivers_were_looked_for_is_said(binding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "elsewhere")
    with pytest.raises(DeviceError, match="OCL_ICD_VENDORS=elsewhere sets the search path: correct or unset it"):
        cl_driver.found_devices()


def test_facts(binding: Any) -> None:
    one = device("h200", 4, host_unified_memory=0, extensions="cl_khr_fp16", double_fp_config=0, single_fp_config=0)
    platform("NVIDIA CUDA", one)
    facts = cl_driver.facts_of(one)
    assert (facts.kind, facts.is_host_memory, facts.has_float64, facts.has_float16) == ("gpu", False, False, True)
    assert (facts.divides_correctly, facts.has_fma) == (False, False)
    assert "0.2 GiB in one buffer" in facts.limits()
    shared = device("laptop", 4)
    platform("Any", shared)
    assert cl_driver.facts_of(shared).kind == "igpu"
    cpu = device("xeon", 2)
    platform("Any", cpu)
    assert cl_driver.facts_of(cpu).is_host_memory


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"available": False}, "CL:1: board is reported as not available"),
        ({"compiler_available": False}, "has no compiler"),
        ({"profile": "EMBEDDED_PROFILE"}, "embedded profile"),
    ],
)
def test_devices_that_cannot_be_used_say_why(binding: Any, change: dict[str, Any], text: str) -> None:
    one = device("board", 8, **change)
    platform("Boards", one)
    with pytest.raises(DeviceError, match=text):
        cl_driver.refuse_unusable(one, cl_driver.facts_of(one), "CL:1")


def pocl(version: str) -> Any:
    one = device("cpu", 2)
    platform("Portable Computing Language", one, version=f"OpenCL 3.0 PoCL {version}  Linux")
    return one


def test_pocl_without_a_linker_is_refused_before_it_ends_the_process(
    binding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    old, new = pocl("3.0-rc2"), pocl("7.1")
    with pytest.raises(DeviceError, match=r"needs the linker `ld`, which is not on PATH.*Install the package binutils"):
        cl_driver.refuse_unusable(old, cl_driver.facts_of(old), "CL")
    cl_driver.refuse_unusable(new, cl_driver.facts_of(new), "CL")


def test_pocl_that_fails_in_a_process_of_its_own_is_refused(
    binding: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "ld"
    tool.write_text("")
    monkeypatch.setattr("shutil.which", lambda name: str(tool))
    answers = ["ld: cannot find -lm.", None]
    monkeypatch.setattr(cl_driver, "_self_test", lambda facts: answers.pop(0))
    one = pocl("6.0")
    with pytest.raises(DeviceError, match=r"ld: cannot find -lm\. Install the packages binutils and libc6-dev"):
        cl_driver.refuse_unusable(one, cl_driver.facts_of(one), "CL")
    cl_driver.refuse_unusable(one, cl_driver.facts_of(one), "CL")
    cl_driver.refuse_unusable(one, cl_driver.facts_of(one), "CL")  # what worked once is not asked again
    assert answers == []


def test_a_linker_that_fails_is_found_though_pocls_own_cache_knows_the_first_kernel(
    opencl: str, tmp_path: Path
) -> None:
    """Kernels in that cache need no linker: the self-test passed, and the next new kernel ended the process."""
    if not cl_driver.facts_of(cl_driver.found_devices()[0]).is_pocl:
        pytest.skip("this driver needs no linker")
    code = """
from kernmill import Tensor
from kernmill.ir import DeviceError
try:
    print((Tensor([1.0, 2.0], device="CL") * {factor}).tolist())
except DeviceError as error:
    print(error)
"""
    tools, stores = tmp_path / "tools", {"POCL_CACHE_DIR": str(tmp_path / "pocl")}
    tools.mkdir()
    (tools / "ld").write_text("#!/bin/sh\nexit 1\n")
    (tools / "ld").chmod(0o755)
    assert run(code.format(factor=3), tmp_path / "one", **stores)[0] == "[3.0, 6.0]\n"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    out = run(code.format(factor=5), tmp_path / "two", **stores, PATH=path)[0]
    assert "a self-test kernel failed (run in a separate process)" in out
    assert "Install the packages binutils and libc6-dev" in out


def test_a_forked_child_is_refused(binding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cl_driver, "_started", [os.getpid() + 1])
    with pytest.raises(DeviceError, match=r"was forked after OpenCL was opened.*spawn"):
        cl_driver.found_devices()


def test_a_missing_binding_is_named() -> None:
    code = """
sys.modules["pyopencl"] = None
from kernmill.ir import DeviceError
try:
    get_device("CL")
except DeviceError as error:
    print(error)
"""
    process = start(code)
    out, err = process.communicate(timeout=120)
    assert "the Python package pyopencl cannot be imported" in out, err
    assert "`kernmill[cl]`" in out
    assert "PATH" in environment()


def test_no_driver_and_no_such_device_leave_the_process_running(opencl: str, tmp_path: Path) -> None:
    code = """
from kernmill.ir import DeviceError
for name in ("CL", "CL:9", "CL:nobody"):
    try:
        get_device(name) if name != "CL:nobody" else __import__("kernmill").runtime.canonical_name(name)
    except DeviceError as error:
        print(name, error)
print("still here")
"""
    process = start(code, OCL_ICD_VENDORS=str(tmp_path / "nothing"))
    out, err = process.communicate(timeout=120)
    assert "CL CL: no OpenCL driver was found" in out, err
    assert out.endswith("still here\n")
    process = start(code)
    out, err = process.communicate(timeout=120)
    assert "CL:9 device 'CL:9': not found. Available: CL" in out, err
    assert "CL:nobody CL:nobody: no OpenCL device has this in its name. Available: CL:0 is " in out
    assert out.endswith("still here\n")
