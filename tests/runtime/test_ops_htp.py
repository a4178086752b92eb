"""HTP: sessions under the emulator, compared with NumPy; and a session that ends, hangs or has no memory left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.ir import CompileError, Context, DeviceError, OutOfMemoryError, SettingError
from kernmill.quant import QuantizedTensor
from kernmill.runtime import close_device, get_device, ops_htp

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parent.parent.parent
EMULATOR = os.environ.get("QEMU_HEXAGON") or shutil.which("qemu-hexagon")
needs_emulator = pytest.mark.skipif(not EMULATOR, reason="there is no qemu-hexagon")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with Context(CACHE="0"):
        yield
    for index in range(4):
        close_device(f"HTP:{index}" if index else "HTP")


def on(array: Array, device: str = "HTP") -> Tensor:
    return Tensor(array, device=device)


def sources_of(device: Any) -> list[str]:
    """The texts that the device compiles from now on."""
    kept: list[str] = []
    compile_later, compile_one = device.compile_later, device.compile

    def later(name: str, source: str) -> Any:
        kept.append(source)
        return compile_later(name, source)

    def at_once(name: str, source: str) -> Any:
        kept.append(source)
        return compile_one(name, source)

    device.compile_later, device.compile = later, at_once
    return kept


@needs_emulator
def test_elementwise_sums_and_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((33, 40)).astype(np.float32)
    x[3, 4] = np.nan
    np.testing.assert_array_equal((on(x) * 2 + 1).numpy(), x * 2 + 1)
    np.testing.assert_array_equal(on(x).maximum(0.5).numpy(), np.maximum(x, np.float32(0.5)))
    np.testing.assert_allclose(on(x[5:]).sum(1).numpy(), x[5:].sum(1), rtol=1e-4, atol=1e-5)
    assert np.isnan(on(x).max().numpy())
    assert np.isnan(on(x).exp().numpy()[3, 4])


@needs_emulator
@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes_are_vectors(left: str, right: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (16, 64)).astype(np.uint8).view(kind) for kind in (left, right))
    b = np.ascontiguousarray(np.tile(b, (4, 1)))
    kept = sources_of(get_device("HTP"))
    got = (on(a).cast("int32") @ on(b).cast("int32")).numpy()
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
    assert any("vrmpy" in text for text in kept)


@needs_emulator
def test_table_lookups_are_vectors() -> None:
    """The codes of MXFP4 are looked up by `vlut32`."""
    rng = np.random.default_rng(6)
    blocks = QuantizedTensor.quantize(Tensor(rng.standard_normal((32, 64)).astype(np.float32)), "MXFP4")
    x = rng.standard_normal((1, 64)).astype(np.float32)
    kept = sources_of(get_device("HTP"))
    weights = QuantizedTensor(on(blocks.data.numpy()), "MXFP4", (32, 64)).interleaved()
    np.testing.assert_allclose(weights.linear(on(x)).numpy(), blocks.linear(Tensor(x)).numpy(), rtol=1e-5, atol=1e-4)
    assert any("vlutvvb" in text and "vrmpy" in text for text in kept)


@needs_emulator
@pytest.mark.parametrize(("text", "what"), [("define", "refuses it"), (None, "ended while it compiled it")])
def test_a_kernel_that_is_not_compiled(text: str | None, what: str) -> None:
    """A refused text and a lost process are two causes; both say where it can be computed."""
    device: Any = get_device("HTP")
    if text is None:
        helper = ops_htp._compiler_process()
        helper.process.send_signal(signal.SIGSTOP)
        answer = device.compile_later("k", "define")
        helper.process.kill()
    else:
        answer = device.compile_later("k", text)
    with pytest.raises(CompileError) as caught:
        answer()
    assert str(caught.value) == (
        f"kernel k: LLVM's code generator for Hexagon {what}. Compute it on the CPU: move its tensors by to('LLVM')."
    )


@needs_emulator
@pytest.mark.parametrize("seed", range(3))
def test_quotients_and_roots_of_doubles_are_exact(seed: int) -> None:
    """Functions of ours, since LLVM calls some that no library has."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 1 << 64, 400, np.uint64).view(np.float64) for _ in range(2))
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 2.2e-308, 1.8e308, 1.0, -3.0])
    a, b = np.concatenate([a, np.repeat(edges, 10)]), np.concatenate([b, np.tile(edges, 10)])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((on(a) / on(b)).numpy(), a / b)
        np.testing.assert_array_equal(on(a).sqrt().numpy(), np.sqrt(a))


@needs_emulator
def test_fused_zeros_keep_their_sign() -> None:
    """Named regression: -0.0 * 1 + -0.0 was 0.0 in float64, and with it erf(-0.0)."""
    assert np.signbit(on(np.array([-0.0])).erf().numpy()).all()


@needs_emulator
def test_a_part_of_a_row_of_bytes_is_written() -> None:
    """Named regression: stores with a mask of few bytes wrote behind their end."""
    kept = on(np.full(60, 3, np.int8)).realize()
    kept[0:37] = on((np.arange(37) % 2).astype(np.int16)).cast("int8")
    np.testing.assert_array_equal(kept.numpy(), [*(n % 2 for n in range(37)), *[3] * 23])


@needs_emulator
def test_integer_division() -> None:
    rng = np.random.default_rng(3)
    for kind in ("int8", "int32", "int64", "uint64"):
        a = rng.integers(0, 1 << 63, 200, np.uint64).astype(kind)
        b = np.maximum(rng.integers(0, 100, 200), 1).astype(kind)
        np.testing.assert_array_equal((on(a) // on(b)).numpy(), a // b)
        np.testing.assert_array_equal((on(a) % on(b)).numpy(), a % b)


@needs_emulator
def test_two_sessions_have_separate_memory() -> None:
    x = np.arange(100, dtype=np.int32)
    first, second = on(x), on(x, "HTP:1")
    assert get_device("HTP") is not get_device("HTP:1")
    np.testing.assert_array_equal((first + 1).to("HTP:1").numpy() + (second * 2).numpy(), x + 1 + 2 * x)


@needs_emulator
def test_a_session_has_a_limit() -> None:
    device = ops_htp.HtpDevice("HTP", 0, {"limit": "8000000"})
    try:
        assert device.props().total_bytes == 8_000_000
        with pytest.raises(OutOfMemoryError, match="exceed the session's limit of 8,000,000"):
            device.allocate(7_000_000)
    finally:
        device.close()


@needs_emulator
def test_a_session_that_ends_is_opened_anew() -> None:
    x = on(np.arange(10, dtype=np.float32)).realize()
    device: Any = get_device("HTP")
    device.session.transport.process.kill()
    device.session.transport.process.wait()
    with pytest.raises(DeviceError, match=r"the session ended.*opened again"):
        (x + 1).numpy()
    np.testing.assert_array_equal((on(np.ones(3, np.float32)) + 1).numpy(), [2, 2, 2])
    assert get_device("HTP") is not device


@needs_emulator
def test_a_session_that_gives_no_answer() -> None:
    device: Any = ops_htp.HtpDevice("HTP", 0, {"seconds": "0.2"})
    device.session.transport.process.send_signal(signal.SIGSTOP)
    with pytest.raises(DeviceError, match=r"gave no answer within 0\.2 s, and was ended"):
        device.allocate(1 << 30)  # which the session must map


@needs_emulator
@pytest.mark.parametrize(("key", "value"), [("limit", "-1"), ("seconds", "soon")])
def test_options_must_be_numbers(key: str, value: str) -> None:
    with pytest.raises(SettingError, match=rf"HTP\?{key}={value}: must be a number above 0"):
        ops_htp.HtpDevice("HTP", 0, {key: value})


def test_without_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QEMU_HEXAGON", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match=r"there is no qemu-hexagon\. Install the package qemu-user"):
        ops_htp.HtpDevice.devices()


@needs_emulator
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "MXFP4", "Q4_K"])
def test_repacked_weights_give_the_products_of_the_host(name: str) -> None:
    """Named regression: Q4_K's kernel, with a gather in vectors, ended the session."""
    rng = np.random.default_rng(4)
    blocks = QuantizedTensor.quantize(Tensor(rng.standard_normal((40, 256)).astype(np.float32)), name)
    x = rng.standard_normal((2, 256)).astype(np.float32)
    weights = QuantizedTensor(on(blocks.data.numpy()), name, (40, 256)).interleaved()
    assert weights.side == 32
    want = blocks.linear(Tensor(x)).numpy()
    np.testing.assert_allclose(weights.linear(on(x)).numpy(), want, rtol=1e-5, atol=1e-4)


@needs_emulator
@pytest.mark.slow
def test_four_sessions_make_the_tokens_of_the_cpu() -> None:
    command = [sys.executable, "-m", "bench.sessions", "-n", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cpu, sessions = (line.split(":")[1].split() for line in done.stdout.splitlines()[-2:])
    assert cpu == sessions
    assert len(cpu) == 4
    assert re.search(r"^HTP:3-REPACK .* 0\.\d+ ", done.stderr, re.MULTILINE)
