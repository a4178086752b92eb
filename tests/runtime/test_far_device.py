"""What the author of a device meets: named regressions on FAR, a device in another process (tests/far_device.py)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kernmill import Context, Tensor, jit, profile
from kernmill.ir import CompileError, DeviceError, InternalError, KernmillError, Ops, OutOfMemoryError
from kernmill.runtime import Device, Properties, close_device, get_device, realize

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


def test_row_6_memory_is_given_back_outside_of_a_collection(far: Far) -> None:
    """A collection in the middle of a message called `free`, which waited for the lock of that message for ever."""
    name = far()
    device = get_device(name)
    cycle: list[object] = [Tensor(X, device=name).realize()]
    cycle.append(cycle)
    before = device.props().free_bytes
    del cycle
    with device.lock:  # type: ignore[attr-defined]
        gc.collect()
    device.allocator.trim()
    assert device.props().free_bytes > before


def test_row_7_a_training_step_asks_for_no_memory(far: Far) -> None:
    """Each step sent two messages for blocks and two to give them back."""
    name = far()
    verbs: list[str] = []
    device: Any = get_device(name)
    ask = device.ask
    w = Tensor(np.ones((4, 4), np.float32), device=name, requires_grad=True)
    x = Tensor(np.ones((2, 4), np.float32), device=name)

    def noted(*message: Any) -> Any:
        verbs.append(message[0])
        return ask(*message)

    for step in range(5):
        if step == 3:
            device.ask = noted
        w.grad = None
        (x @ w).relu().sum().backward()
        w.assign(w.detach() - cast("Tensor", w.grad) * 0.1).realize()
    assert "run" in verbs
    assert not {"alloc", "free"} & set(verbs)


def test_row_8_a_tensor_above_the_largest_buffer(far: Far) -> None:
    name = far(most=MIB)
    with pytest.raises(OutOfMemoryError, match=r"FAR: a buffer of 1,048,580 bytes exceeds the largest allocation"):
        Tensor(np.ones(MIB // 4 + 1, np.float32), device=name)
    x = Tensor(np.ones((300, 300), np.float32), device=name)
    y = x
    for _ in range(4):  # an arena would be larger than that: buffers get blocks of their own
        y = (y + 1).contiguous() @ x
    assert np.isfinite(y.numpy()).all()


def test_row_8_intermediates_keep_the_alignment(far: Far) -> None:
    """With an alignment of 4096, they were at 2688 and 3456 of their block."""
    name = far(align=4096)
    device: Any = get_device(name)
    ask, addresses = device.ask, set[int]()

    def seen(*message: Any) -> Any:
        if message[0] == "run":
            addresses.update(address for call in message[1] for address, _ in call[1])
        return ask(*message)

    device.ask = seen
    x = Tensor(np.ones((13, 13), np.float32), device=name)
    y = ((x @ x).contiguous() @ (x + 1).contiguous() @ x).contiguous()
    assert np.isfinite((y @ y)[1:].numpy()).all()
    rows = ((x @ x) + 1).contiguous()
    z = ((rows[1:5] * 2).contiguous().sum(0) + x[3] * 2).numpy()
    assert z.tolist() == [114.0] * 13
    assert len(addresses) > 3
    assert {address % 4096 for address in addresses} == {0}


def test_row_8_intermediates_in_pieces_where_no_piece_holds_all(far: Far) -> None:
    """8 MiB free in four pieces: an arena of 4 MiB was an OutOfMemoryError."""
    name = far(mib=16)
    held = [Tensor(np.ones(MIB // 2, np.float32), device=name) for _ in range(8)]
    del held[::2]
    x = held[0]
    y = ((x + x).contiguous() * x).contiguous() + (x * x + x).contiguous()
    assert y.sum().item() == 4 * MIB // 2


def test_row_8_all_that_can_be_mapped(far: Far) -> None:
    name = far(mib=64, mapped=6 * MIB)
    x = Tensor(np.ones(MIB, np.float32), device=name).realize()
    with pytest.raises(OutOfMemoryError, match=r"FAR: .*buffer of 4\.0 MiB.* Free: 2\.0 MiB of 64"):
        Tensor(np.ones(MIB, np.float32), device=name)
    assert x.sum().item() == MIB


def test_a_copy_between_far_devices_goes_through_the_buffer_of_the_host(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.far_device import FarDevice

    asked: list[int] = []

    def pinned(self: Any, size_bytes: int) -> memoryview:
        asked.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    monkeypatch.setattr(FarDevice, "host_buffer", pinned)
    assert (Tensor(X, device=far()).to(far(1)) + 1).numpy().tolist() == [2, 3, 4, 5]
    assert asked == [16]


def test_row_13_checks_reach_far_memory(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHECK=1 left out devices whose memory the host cannot see, without a word."""
    from tests.far_device import FarDevice

    name = far()
    with Context(CHECK=1):
        assert (Tensor(X, device=name) * 2 + 1).numpy().tolist() == [3, 5, 7, 9]
    real: Any = FarDevice.copy_out

    def spoilt(self: Any, target: memoryview, source: Any) -> None:
        real(self, target, source)
        target[2] ^= 64

    monkeypatch.setattr(FarDevice, "copy_out", spoilt)
    with (
        Context(CHECK=1),
        pytest.raises(InternalError, match=r"CHECK: map_4 \(.*\.py:\d+\) on FAR differs"),
    ):
        (Tensor(X, device=name) * 2 + 2).numpy()


def _python(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **variables}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=given, check=False)


@pytest.mark.parametrize(("name", "is_searched"), [("SHLVL", False), ("ABACUS", True)])
def test_the_first_shell_names_no_device(name: str, is_searched: bool) -> None:
    """A shell sets SHLVL=1: each start searched the installed packages for such a device."""
    program = (
        "import sys; from kernmill import Tensor; print(Tensor([1.0]).device, 'importlib.metadata' in sys.modules)"
    )
    assert _python(program, **{name: "1"}).stdout.split() == ["LLVM", str(is_searched)]


def test_row_14_the_second_spelling_of_DEVICE() -> None:
    """`MYDEV=1 python dot.py` ran on LLVM without a word."""
    program = "from kernmill import Tensor; print((Tensor([1.0]) + 1).device)"
    assert _python(program, PYTHON="1").stdout.strip() == "PYTHON"
    assert _python(program, PYTHON="1", DEVICE="python").stdout.strip() == "PYTHON"
    assert _python(program, PYTHON="0").stdout.strip() == "LLVM"
    both = _python(program, PYTHON="1", NULL="1").stderr
    assert "PYTHON=1" in both
    assert "NULL=1" in both
    assert "name different devices. Set one of them." in both
    assert "DEVICE=LLVM and NULL=1 name different" in _python(program, NULL="1", DEVICE="LLVM").stderr


def test_row_15_a_copy_is_a_line(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies between devices were in no report and in no sum."""
    with Context(DEBUG=2), profile() as found:
        (Tensor(np.ones(MIB, np.float32)) + 1).to(far()).realize()
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("copy LLVM -> FAR")]
    assert " 4,194,304 bytes " in line
    assert " GB/s" in line
    assert [span.nbytes for span in found.recorder.spans if span.name == "LLVM -> FAR"] == [4 * MIB]


def test_row_16_a_device_that_fails_is_lost(far: Far) -> None:
    """It was a bare OSError, then "Exception ignored in" for each buffer."""
    name, other = far(), far(1)
    x, y = Tensor(X, device=name), Tensor(X, device=other)
    device: Any = get_device(name)
    device.given["fail_at"] = device.calls + 3  # after load and alloc: run
    message = r"FAR: run of map_4 \(.*test_far_device.py:\d+\) failed \(OSError: DMA error\)\. The device is lost"
    with pytest.raises(DeviceError, match=message):
        (x + x).realize()
    for use in (x.numpy, (x * x).numpy, x.to("LLVM").numpy):
        with pytest.raises(DeviceError, match="The device is lost, and so are its tensors"):
            use()
    assert (y + 1).numpy().tolist() == [2, 3, 4, 5]
    del x, use
    assert (Tensor(X, device=name) + 1).numpy().tolist() == [2, 3, 4, 5]
    assert get_device(name) is not device


@pytest.mark.parametrize("call", [*range(2, 10)])
def test_row_16_a_process_that_dies(far: Far, call: int) -> None:
    """At its n-th call, whatever that is; what another device has stays."""
    step = jit(lambda a: (a * 3).sum())

    def steps() -> None:
        name = far(die_at=call)
        for _ in range(20):
            step(Tensor(X, device=name)).item()

    with pytest.raises(DeviceError, match=r"failed \((EOFError|BrokenPipeError)"):
        steps()
    assert (Tensor(X) + 1).numpy().tolist() == [2, 3, 4, 5]
    step.reset()
    for _ in range(4):
        assert step(Tensor(X, device=far(1))).item() == 30


class _Broken(Device):
    CONTRACT = 1


_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing method": ({}, r"_Broken has no compile, load, renderer, run\. A device has to have them"),
    "an older contract": ({"CONTRACT": 0}, r"keeps contract 0, and this is contract 1\."),
    "no contract": ({"CONTRACT": None}, r"does not say which contract it keeps, and this is contract 1"),
    "an older run": ({"run": lambda self, calls: []}, r"run takes no is_timed\. It is called as run\(calls, is_timed="),
    "devices()": ({"devices": classmethod(lambda cls: [][0])}, r"devices\(\) failed \(IndexError: "),
    "__init__": ({"__init__": lambda self, *given: dict[str, int]()["x"]}, r"__init__ failed \(KeyError: "),
    "props": ({"props": lambda self: 1 // 0}, r"props failed \(ZeroDivisionError"),
    "an alignment": ({"props": lambda self: Properties(alignment=24)}, "an alignment of 24 is not a power of two"),
    "a limit of 0": ({"props": lambda self: Properties(max_alloc_bytes=0)}, r"a buffer of at most 0 bytes"),
    "free of total": ({"props": lambda self: Properties(10, 20)}, r"20 bytes free of 10\. See `props` in docs"),
}  # fmt: skip


@pytest.mark.parametrize("fault", list(_FAULTS))
def test_row_17_what_an_author_forgets(far: Any, fault: str) -> None:
    """Bare exceptions, without the device's name; an older `run` failed at the first kernel."""
    members, message = _FAULTS[fault]
    base = _Broken if fault == "a missing method" else get_class(far)
    name = far.announce("FAULTY", type("_Broken", (base,), members))
    with pytest.raises(DeviceError, match=f"device 'FAULTY': .*{message}"):
        get_device(name)


def get_class(far: Any) -> type:
    """A device that works, of host memory."""
    return type("Works", (type(get_device("PYTHON")),), {"__module__": "elsewhere"})


@pytest.mark.parametrize(
    ("without", "build", "message"),
    [
        (
            "XOR",
            lambda x: x.cast("int32") ^ 3,
            r"FAR cannot compute XOR of int32: the op is not in the ops of its",
        ),
        ("float64", lambda x: x.cast("float64") * 2, r"FAR cannot compute (MUL|CAST) of float64: the dtype is not in"),
    ],
)
def test_row_18_an_op_that_the_device_has_not(far: Far, without: str, build: Any, message: str) -> None:
    """Nothing changed, or the author's own CompileError came from the middle of a renderer."""
    name = far(without=without)
    with pytest.raises(CompileError, match=rf"kernel map_4 \(.*{Path(__file__).name}:\d+\): {message}"):
        build(Tensor(X, device=name)).numpy()
    assert (Tensor(X, device=name) + 1).numpy().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("supports", "message"),
    [
        (
            lambda self, op, node: "no unit for it" if op is Ops.MUL else True,
            "cannot compute MUL of float32: no unit",
        ),
        (lambda self, op, node: 1 // 0, r"device 'PICKY': supports failed \(ZeroDivisionError"),
    ],
)
def test_row_18_what_supports_says(far: Any, supports: Any, message: str) -> None:
    from tests.far_device import FarDevice

    name = far.announce("PICKY", type("Picky", (FarDevice,), {"supports": supports}))
    with pytest.raises(KernmillError, match=message):
        (Tensor(X, device=name) * 2.5).numpy()


def test_row_19_what_is_written_in_place_keeps_its_device(far: Far) -> None:
    """`z[1:2] = far` moved z to FAR without a word."""
    z, value = Tensor.zeros(3), Tensor(X[:1], device=far())
    with pytest.raises(DeviceError, match=r"t\[\.\.\] = v: the value is on FAR, and what it is written into on LLVM"):
        z[1:2] = value
    with pytest.raises(DeviceError, match=r"assign: the value is on FAR"):
        Tensor.zeros(1).assign(value)
    z[1:2] = value.to("LLVM")
    assert z.device == "LLVM"
    assert z.numpy().tolist() == [0, 1, 0]


def test_a_captured_function_after_its_device_was_closed(far: Far) -> None:
    """Its replay belongs to the process that is gone; after a reset it is captured with the new one."""
    name, step = far(), jit(lambda a: (a * 3).sum())
    for _ in range(4):
        assert step(Tensor(X, device=name)).item() == 30
    close_device(name)
    with pytest.raises(DeviceError, match=r"FAR: it was closed\. The device is lost, .* call reset\(\) of captured"):
        step(Tensor(X, device=name))
    step.reset()
    for _ in range(4):
        assert step(Tensor(X, device=name)).item() == 30


# --- options ---------------------------------------------------------------------------------------------------------
def test_options_of_a_device(far: Far) -> None:
    name = far()
    with pytest.raises(DeviceError, match=r"'FAR': it has other options already \(none\)"):
        get_device("FAR?mib=8")
    assert get_device("far:2?mib=8").props().total_bytes == 8 * MIB
    assert get_device("FAR:2") is get_device("FAR:2?mib=8")
    with pytest.raises(
        DeviceError, match=r"'FAR:3': it has no option colour\. It has without: ops and dtypes left out"
    ):
        get_device("FAR:3?colour=blue")
    with pytest.raises(DeviceError, match=r"options are written FAR:1\?key=value&key=value, each key once"):
        get_device("FAR:1?mib")
    assert name == "FAR"


def test_a_constant_that_two_devices_read_is_realized_with_both(far: Any) -> None:
    """Its one buffer was on one device, and a kernel of the other read it: InternalError."""
    name, zeros = far(), Tensor.zeros(2, 3)
    x, y = Tensor([[1.0, 2, 3]]).realize(), Tensor([[4.0, 5, 6]], device=name).realize()
    here, there = x + zeros, y + zeros
    Tensor.realize(zeros, here, there)
    assert (here.tolist(), there.tolist()) == ([[1, 2, 3]] * 2, [[4, 5, 6]] * 2)
    assert zeros.tolist() == [[0, 0, 0]] * 2
