"""What the author of a device meets: named regressions on FAR, a device in another process (tests/far_device.py)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.ir import DeviceError, InternalError, OutOfMemoryError
from kernmill.runtime import Device, get_device, realize

Far = Callable[..., str]
MIB = 1 << 20
X = np.array([1, 2, 3, 4], np.float32)


def test_a_device_in_another_process_computes(far: Far) -> None:
    name = far()
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=name)
    np.testing.assert_array_equal(
        (x @ x.T + 1).numpy(), np.arange(12).reshape(3, 4) @ np.arange(12).reshape(3, 4).T + 1
    )
    assert (x + 1).to(far(1)).to("LLVM").sum().item() == 78


# --- placement.md 2.2, by row ----------------------------------------------------------------------------------------
_TABLED = """
import sys
from kernmill.ir import Ops, Target
from kernmill.renderers import PYTHON_OPS, PythonRenderer
from kernmill.runtime import Device, Program

class Renderer(PythonRenderer):
    def render(self, name, uops):
        return super().render(name, uops).replace(" * ", SIGN)

SIGN = " * "

class TabledDevice(Device):
    CONTRACT = 1
    @property
    def renderer(self): return Renderer(Target("tabled", ops=PYTHON_OPS))
    def compile(self, name, source): return source.encode()
    def load(self, name, binary):
        scope = {"f32": float, "i64": int, "i32": int, "index": int}
        exec(binary.decode(), scope)
        return Program(name, scope[name])
    def run(self, calls, *, is_timed=False):
        for call in calls:
            call.program.handle(*[b.host_array() for b in call.buffers], *call.variables, 0, call.threads)
        return [1] * len(calls) if is_timed else []
"""


def test_row_1_an_edited_renderer_takes_effect_with_a_warm_cache(tmp_path: Path) -> None:
    """It ran what the renderer had printed before the edit."""
    facts = tmp_path / "tabled-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tabled\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[kernmill.devices]\nTABLED = tabled:TabledDevice\n")
    program = "from kernmill import Tensor; print((Tensor([2.0, 3, 5], device='TABLED') * 7).numpy().tolist())"

    def run(text: str) -> str:
        (tmp_path / "tabled.py").write_text(text)
        paths = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
        given = {
            **os.environ,
            "PYTHONPATH": paths,
            "CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=given, check=True)
        return done.stdout.strip()

    assert run(_TABLED) == run(_TABLED) == "[14.0, 21.0, 35.0]"
    assert run(_TABLED.replace('SIGN = " * "', 'SIGN = "+"')) == "[9.0, 10.0, 12.0]"


def test_row_2_to_copies_once(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor of two axes went through a kernel and a second buffer of its size."""
    name = far(mib=64)
    x = Tensor(np.ones((40, 512, 512), np.float32), device=name).realize()
    assert x.to("LLVM").sum().item() == x.numel()
    with Context(DEBUG=2):
        y = Tensor(np.ones((64, 64), np.float32)).realize().to("NULL").realize()
    printed = capsys.readouterr().err
    assert y.device == "NULL"
    assert "map_64x64" not in printed
    assert "bytes for intermediates" not in printed


_COPIED = {
    "a permuted view": (lambda x: x.T, 0),
    "a part": (lambda x: x[1:, :2], 0),
    "an expression": (lambda x: x + 1, 0),
    "a reshaped expression": (lambda x: (x + 1).reshape(2, 6), 0),
    "a reshaped leaf": (lambda x: x.reshape(2, 2, 3), 0),
}


@pytest.mark.parametrize("made", [made for made, _ in _COPIED.values()], ids=list(_COPIED))
def test_row_2_what_is_copied_keeps_its_values(far: Far, made: Callable[[Tensor], Tensor]) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = made(Tensor(array)).numpy()
    name = far()
    np.testing.assert_array_equal(made(Tensor(array)).to(name).numpy(), want)
    np.testing.assert_array_equal((made(Tensor(array).realize()).to(name) * 2).to("LLVM").numpy(), want * 2)
    np.testing.assert_array_equal(made(Tensor(array, device=name)).to("LLVM").numpy(), want)


@pytest.mark.parametrize("lacking", ["allocate", "free", "copy_in", "copy_out"])
def test_row_3_far_memory_without_one_of_its_four_methods(far: Far, lacking: str) -> None:
    """Without copy_in an upload ended in a segmentation fault."""
    from tests.far_device import FarDevice

    given = {member: getattr(FarDevice, member) for member in ("allocate", "free", "copy_in", "copy_out")}
    cls = type("Part", (FarDevice,), {lacking: getattr(Device, lacking)})
    name = far.announce("PART", cls)  # type: ignore[attr-defined]
    assert given
    with pytest.raises(DeviceError, match=rf"gives .*, and not {lacking}\. These four go together"):
        get_device(name)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_row_4_a_graph_of_two_devices_below_the_front(far: Far, order: tuple[int, int]) -> None:
    """The front refuses it; below, it was a segmentation fault, or the end of the device's process."""
    both = [Tensor(X, device="LLVM"), Tensor(X, device=far())]
    a, b = (both[n].realize().uop for n in order)
    with pytest.raises(InternalError, match=r"kernel map_4.* on (LLVM|FAR) reads or writes memory of (LLVM|FAR)"):
        realize([a + b])
    assert both[1].sum().item() == 10


def test_row_5_a_device_that_queues(far: Far) -> None:
    """Copies did not wait for the kernels that wrote what they copy: zeros."""
    name, other = far(queueing=1, sleep_ns=20_000_000), far(1, queueing=1, sleep_ns=20_000_000)
    x = Tensor(X, device=name)
    assert (x * 2 + 1).numpy().tolist() == [3, 5, 7, 9]
    assert ((x * 3).to(other) + 1).to("LLVM").numpy().tolist() == [4, 7, 10, 13]
    assert ((x * 3).to(other) + 1).to(name).numpy().tolist() == [4, 7, 10, 13]


def test_row_5_memory_that_is_used_again_while_kernels_wait(far: Far) -> None:
    """The block of a tensor that is gone gets other values while a kernel in the queue still has to read it."""
    name = far(queueing=1, sleep_ns=50_000_000)
    for _ in range(3):
        y = (Tensor(X, device=name).realize() * 2).realize()
        z = Tensor(X + 100, device=name).realize()
        assert y.numpy().tolist() == [2, 4, 6, 8]
        assert z.numpy().tolist() == (X + 100).tolist()


def test_row_9_memory_in_reference_cycles(far: Far) -> None:
    """40 of 64 MiB in a dead cycle, 40 more: OutOfMemoryError."""
    name = far(mib=64)
    gc.disable()
    try:
        cycle: list[object] = [Tensor(np.ones(40 * MIB // 4, np.float32), device=name).realize()]
        cycle.append(cycle)
        del cycle
        assert Tensor(np.ones(40 * MIB // 4, np.float32), device=name).realize().sum().item() == 10 * MIB
    finally:
        gc.enable()


def test_row_11_the_message_without_memory(far: Far) -> None:
    """It was the device's own text, with neither what is held nor what to do."""
    name = far(mib=12)
    held = Tensor.ones(2, MIB, device=name).contiguous().realize()
    with pytest.raises(OutOfMemoryError) as caught:
        (held + 1).realize()
    text = str(caught.value)
    assert text.startswith(
        "FAR: out of memory: a buffer of 8.0 MiB cannot be allocated. Free: 4.0 MiB of 12.0 MiB; held by live buffers: "
    )
    assert " Largest on FAR: (2, 1048576) float32 at " in text
    assert f"{Path(__file__).name}:" in text
    assert " The memory was for what " in text
    assert held.sum().item() == 2 * MIB


# --- options ---------------------------------------------------------------------------------------------------------
def test_options_of_a_device(far: Far) -> None:
    name = far()
    with pytest.raises(DeviceError, match=r"'FAR': it has other options already \(none\)"):
        get_device("FAR?mib=8")
    assert get_device("far:2?mib=8").props().total_bytes == 8 * MIB
    assert get_device("FAR:2") is get_device("FAR:2?mib=8")
    with pytest.raises(DeviceError, match=r"'FAR:3': it has no option colour\. It has mib: memory; most:"):
        get_device("FAR:3?colour=blue")
    with pytest.raises(DeviceError, match=r"options are written FAR:1\?key=value,key=value, each key once"):
        get_device("FAR:1?mib")
    assert name == "FAR"


_ = textwrap
