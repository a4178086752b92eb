"""`kernmill quantize`: types, bytes and metadata of what it writes; and that a failure leaves nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor, dtypes, quantize
from kernmill.formats import gguf
from kernmill.formats.gguf_types import ValueType
from kernmill.formats.gguf_write import Typed
from kernmill.quant import QuantizedTensor, block_type, load, save
from kernmill.quant.importance import Columns, Importance
from tests.kernmill.against import only_on

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(8)
NAMES = ("token_embd", "blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_down", "output")

on_device = only_on("LLVM")  # that the devices agree is tested elsewhere


def weight(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    return RNG.standard_normal(shape).astype(np.float32)


def model(path: Path, width: int = 256, **changed: Tensor | QuantizedTensor) -> dict[str, Any]:
    arrays = {f"{name}.weight": weight(3, width) for name in NAMES}
    tensors: dict[str, Tensor | QuantizedTensor] = {name: Tensor(array) for name, array in arrays.items()}
    tensors |= {"blk.0.attn_norm.weight": Tensor(weight(width)), "ids": Tensor([[1, 2]], dtypes.int32), **changed}
    pairs = {"general.architecture": "llama", "llama.block_count": 1, "general.name": "é", "tokens": ["a", "b"],
             "general.file_type": 0, "general.alignment": Typed(ValueType.UINT32, 32)}  # fmt: skip
    save(path, tensors, pairs)
    return arrays


def types(path: Path) -> dict[str, str]:
    return {name.removesuffix(".weight"): entry.type.name for name, entry in gguf.read(path).entries.items()}


def quiet(text: str) -> None:
    """No report."""


def test_q4_k_m(tmp_path: Path) -> None:
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    arrays, lines = model(source), list[str]()
    quantize.run(source, target, "q4_k_m", report=lines.append)
    assert types(target) == {
        "token_embd": "Q4_K", "blk.0.attn_q": "Q4_K", "blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K",
        "output": "Q6_K", "blk.0.attn_norm": "F32", "ids": "I32",
    }  # fmt: skip
    found = gguf.read(target)
    assert dict(found.metadata) == {
        "general.architecture": "llama", "llama.block_count": 1, "general.name": "é", "tokens": ("a", "b"),
        "general.file_type": 15, "general.quantization_version": 2,
    }  # fmt: skip
    for name, read in load(target).items():
        if isinstance(read, QuantizedTensor):
            want = arrays[name]
            assert np.sqrt(np.mean((read.dequantize().numpy() - want) ** 2)) < 0.08
            np.testing.assert_array_equal(
                read.data.numpy(), QuantizedTensor.quantize(Tensor(want), read.type).data.numpy()
            )
    assert len(lines) == 8
    assert lines[0].startswith("[   1/   7] token_embd.weight")
    assert lines[0].endswith("F32 -> Q4_K  0.00 MiB -> 0.00 MiB")
    assert ": Q4_K_M, 0.00 MiB of weights from 0.02 MiB, in " in lines[-1]


@pytest.mark.parametrize("mix", ["F32", "BF16", "MXFP4", "COPY"])
def test_mixes_of_one_type(tmp_path: Path, mix: str) -> None:
    arrays = model(tmp_path / "in")
    quantize.run(tmp_path / "in", tmp_path / "out", mix, report=quiet)
    found = gguf.read(tmp_path / "out")
    assert found.metadata["general.file_type"] == {"F32": 0, "BF16": 32, "MXFP4": 38, "COPY": 0}[mix]
    assert types(tmp_path / "out")["blk.0.attn_q"] == {"COPY": "F32"}.get(mix, mix)
    if mix == "BF16":
        want = Tensor(arrays["blk.0.attn_q.weight"]).cast(dtypes.bfloat16).float().numpy()
        read = load(tmp_path / "out")["blk.0.attn_q.weight"]
        assert isinstance(read, Tensor)
        np.testing.assert_array_equal(read.float().numpy(), want)


def test_a_copy_keeps_blocks(tmp_path: Path) -> None:
    x = QuantizedTensor.quantize(Tensor(weight(2, 256)), "Q4_K")
    save(tmp_path / "in", {"blk.0.attn_q.weight": x}, {"general.file_type": 15})
    quantize.run(tmp_path / "in", tmp_path / "out", "COPY", report=quiet)
    assert bytes(gguf.read(tmp_path / "out").values("blk.0.attn_q.weight")) == x.data.numpy().tobytes()
    assert gguf.read(tmp_path / "out").metadata["general.file_type"] == 15


def test_types_that_stand_in_for_others_are_counted(tmp_path: Path) -> None:
    """They were seen only in the lines of the tensors, of which a model has hundreds."""
    model(tmp_path / "in", width=96)
    lines = list[str]()
    quantize.run(tmp_path / "in", tmp_path / "out", "Q4_K_M", report=lines.append)
    assert lines[-2] == (
        "5 tensors have rows that are not a multiple of the block size: Q5_0 for Q4_K in 2, Q8_0 for Q6_K in 3"
    )
    assert types(tmp_path / "out")["blk.0.attn_q"] == "Q5_0"
    model(tmp_path / "in", width=24)
    quantize.run(tmp_path / "in", tmp_path / "out", "Q8_0", report=lines.append)
    assert lines[-2].endswith(": F16 for Q8_0 in 5")


@pytest.mark.parametrize("mix", ["F16", "Q8_0", "Q5_K_M", "Q6_K", "IQ4_XS"])
def test_rows_that_are_no_whole_blocks(tmp_path: Path, mix: str) -> None:
    model(tmp_path / "in", 96)
    quantize.run(tmp_path / "in", tmp_path / "out", mix, report=quiet)
    want = {"F16": "F16", "Q8_0": "Q8_0", "Q5_K_M": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}
    assert types(tmp_path / "out")["blk.0.attn_q"] == want[mix]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64], ids=str)
def test_pieces_are_as_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    x = Tensor(weight(11, 96)).cast(dtype)
    save(tmp_path / "in", {"a.weight": x}, {})
    quantize.run(tmp_path / "in", tmp_path / "whole", "Q5_0", report=quiet)
    monkeypatch.setattr(quantize, "PIECE", 256)
    quantize.run(tmp_path / "in", tmp_path / "pieces", "Q5_0", report=quiet)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "pieces").read_bytes()
    want = block_type("Q5_0").encode(x.float().reshape(-1, 32)).numpy()
    assert bytes(gguf.read(tmp_path / "whole").values("a.weight")) == want.tobytes()


def test_a_file_that_is_write_protected_stays(tmp_path: Path) -> None:
    """It was replaced without a word."""
    model(tmp_path / "in")
    (tmp_path / "out").write_bytes(b"kept")
    (tmp_path / "out").chmod(0o444)
    with pytest.raises(FormatError, match=r"out: is write-protected\. Delete it, or write to a different path"):
        quantize.run(tmp_path / "in", tmp_path / "out", "Q8_0", report=quiet)
    assert (tmp_path / "out").read_bytes() == b"kept"


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not tell")
def test_the_search_for_scales_takes_little_memory(tmp_path: Path) -> None:
    """Q4_K_M of a model of 0.5B took 1.1 GB: each of 21 tries was kept for 2^22 values."""
    save(tmp_path / "in", {"blk.9.attn_q.weight": Tensor(weight(1 << 11, 1 << 11))}, {"llama.block_count": 32})
    code = f"""
from kernmill.quantize import run
run({str(tmp_path / "in")!r}, {str(tmp_path / "out")!r}, "Q4_K", report=print)
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert types(tmp_path / "out") == {"blk.9.attn_q": "Q4_K"}
    assert int(done.stdout.split()[-1]) < 450_000  # KB, with the interpreter and the compiler


def test_twice(tmp_path: Path) -> None:
    x = QuantizedTensor.quantize(Tensor(weight(2, 256)), "Q8_0")
    model(tmp_path / "in", **{"blk.0.attn_q.weight": x})  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=r"tensor 'blk\.0\.attn_q\.weight' is Q8_0 already; .* pass --requantize"):
        quantize.run(tmp_path / "in", tmp_path / "out", "Q4_0", report=quiet)
    assert not (tmp_path / "out").exists()
    quantize.run(tmp_path / "in", tmp_path / "out", quantize.Recipe("Q4_0", requantize=True), report=quiet)
    assert types(tmp_path / "out")["blk.0.attn_q"] == "Q4_0"
    want = QuantizedTensor.quantize(x.dequantize(), "Q4_0").data.numpy()
    assert bytes(gguf.read(tmp_path / "out").values("blk.0.attn_q.weight")) == want.tobytes()


def test_a_split_file_becomes_one_and_no_part_of_it_is_written_over(tmp_path: Path) -> None:
    """It was, once: with the same path given twice, the only copy of the weights in full was gone."""
    paths = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for n, path in enumerate(paths):
        part = {"split.no": n, "split.count": 2, "split.tensors.count": 2}
        save(path, {f"{n}.weight": Tensor(weight(2, 32))}, part)
    (tmp_path / "link").symlink_to(paths[1])
    before = [path.read_bytes() for path in paths]
    for target in (*paths, tmp_path / "link"):
        with pytest.raises(FormatError, match=r"is the input file\. Write to a different path\.$"):
            quantize.run(paths[0], target, "Q8_0", report=quiet)
    assert [path.read_bytes() for path in paths] == before
    quantize.run(paths[0], tmp_path / "out", "Q8_0", report=quiet)
    assert types(tmp_path / "out") == {"0": "Q8_0", "1": "Q8_0"}
    assert not any(key.startswith("split") for key in gguf.read(tmp_path / "out").metadata)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_values_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    bad = weight(3, 256)
    bad[2, 255] = value
    model(tmp_path / "in", **{"output.weight": Tensor(bad)})  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=r"tensor 'output\.weight' has values that are inf or nan, or too large"):
        quantize.run(tmp_path / "in", tmp_path / "out", "Q4_0", report=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_names_that_would_steer_a_terminal(tmp_path: Path) -> None:
    lines = list[str]()
    save(tmp_path / "in", {"\x1b[2J.weight": Tensor(weight(2, 32))}, {})
    quantize.run(tmp_path / "in", tmp_path / "out", "Q8_0", report=lines.append)
    assert "'\\x1b[2J.weight'" in lines[0]
    assert all(line.isprintable() for line in lines)


def test_damaged_files_are_quantized_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the header says: a file that can be read, or one sentence and nothing written."""
    monkeypatch.setattr(quantize, "_encoded", lambda piece, old, new, importance: memoryview(bytes(1 << 16)))
    model(tmp_path / "good", 32)
    good, rng = (tmp_path / "good").read_bytes(), np.random.default_rng(9)
    head = min(entry.start for entry in gguf.read(tmp_path / "good").entries.values())
    for _ in range(300):
        bad = bytearray(good)
        for place in rng.integers(0, head, 3):
            bad[place] = rng.integers(0, 256)
        (tmp_path / "bad").write_bytes(bad)
        with contextlib.suppress(FormatError):
            quantize.run(tmp_path / "bad", tmp_path / "out", "Q8_0", report=quiet)
            gguf.read(tmp_path / "out")
            (tmp_path / "out").unlink()
        assert not {path.name for path in tmp_path.iterdir()} - {"good", "bad"}


def test_stopped(tmp_path: Path) -> None:
    model(tmp_path / "in")
    (tmp_path / "out").write_bytes(b"old")

    def stop(text: str) -> None:
        if "output" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize.run(tmp_path / "in", tmp_path / "out", "Q4_0", report=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert (tmp_path / "out").read_bytes() == b"old"


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals there")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_the_command_leaves_no_part_of_a_file(tmp_path: Path, name: str) -> None:
    """The file under its temporary name was left."""
    model(tmp_path / "in")
    (tmp_path / "out").write_bytes(b"old")
    code = f"""
import os, signal, sys
from kernmill import quantize
from kernmill.commands import cli
signal.signal(signal.{name}, signal.SIG_DFL)
def stop(file, entry, *rest):
    os.kill(os.getpid(), signal.{name})
quantize._converted = stop
sys.exit(cli.main(["quantize", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / "out"), "Q4_0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + getattr(signal, name), "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert (tmp_path / "out").read_bytes() == b"old"


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(tmp_path / "in")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 1024))
    with pytest.raises(FormatError, match=r"out: cannot be written: it needs 0\.00 MiB, the disk has 0\.00 MiB left\."):
        quantize.run(tmp_path / "in", tmp_path / "out", "Q8_0", report=quiet)
    with pytest.raises(FormatError, match=r"none/out: cannot be written: No such file or directory\. Choose"):
        quantize.run(tmp_path / "in", tmp_path / "none" / "out", "Q8_0", report=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
def test_the_command_on_a_full_disk(tmp_path: Path) -> None:
    model(tmp_path / "in")
    limit = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); import kernmill.commands.cli"
    )
    code = f"{limit}; sys.exit(kernmill.commands.cli.main(['quantize', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / "out"), "Q4_0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]  # before it perhaps that the kernel cache cannot be written either
    assert said == f"kernmill: {tmp_path / 'out'}: cannot be written: File too large. Choose a different path."
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_full_disk_of_the_report_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """`kernmill quantize .. >/dev/full` blamed the file that it writes."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    model(tmp_path / "in")
    command = [sys.executable, "-u", "-m", "kernmill", "quantize", str(tmp_path / "in"), str(tmp_path / "out"), "Q4_0"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert said == "kernmill: the output cannot be written: No space left on device. Redirect it."
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    model(tmp_path / "in")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    quantize.run(tmp_path / "in", tmp_path / "out", "Q8_0", report=quiet)
    assert (tmp_path / "out").is_symlink()
    assert gguf.read(tmp_path / "real").entries
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        FormatError, match=r"pipe: cannot be written: it is not a regular file\. Choose a different path"
    ):
        quantize.run(tmp_path / "in", tmp_path / "pipe", "Q8_0", report=quiet)


def test_real_models_are_as_the_reference_writes_them(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    """Bit for bit, but for the output: the reference file was asked to keep it in Q8_0 or Q4_0."""
    folder = shared_data("babyllama105")
    for mix in ("q8_0", "q4_0"):
        quantize.run(folder / "babyllama105-f32.gguf", tmp_path / mix, mix, report=quiet)
        ours, theirs = gguf.read(tmp_path / mix), gguf.read(folder / f"babyllama105-{mix}.gguf")
        assert list(ours.entries) == list(theirs.entries)
        same = {name for name in ours.entries if bytes(ours.values(name)) == bytes(theirs.values(name))}
        assert set(ours.entries) - same <= {"output.weight"}
        assert "output.weight" in same or mix == "q4_0"


def test_values_that_heads_share_are_known_by_the_metadata(tmp_path: Path) -> None:
    for keys, wanted in ((2, "Q5_K"), (8, "IQ4_XS"), ([2, 8], "IQ4_XS")):
        source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
        heads = {"llama.attention.head_count": 8, "llama.attention.head_count_kv": keys}
        pairs = {"general.architecture": "llama", "llama.block_count": 1, **heads}
        save(source, {"blk.0.attn_v.weight": Tensor(weight(3, 256))}, pairs)
        quantize.run(source, target, "IQ4_XS", report=quiet)
        assert types(target) == {"blk.0.attn_v": wanted}


def test_errors_are_weighed_by_the_importance_of_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a matrix, and of each of a stack; in pieces as in one."""
    chance = np.random.default_rng(3)
    arrays = {"blk.0.attn_q.weight": weight(24, 256), "blk.0.ffn_up_exps.weight": weight(3, 8, 256)}
    tensors = {name: Tensor(array) for name, array in arrays.items()}
    save(tmp_path / "in", tensors | {"output.weight": Tensor(weight(2, 256))}, {})
    lines = list[str]()
    columns = {
        name: Columns(np.exp(2 * chance.standard_normal((count, 256))), np.ones(count))
        for name, count in zip(arrays, (1, 3), strict=True)
    }
    found = Importance(columns, ["text"], 5, 512, "m.gguf")
    wanted = quantize.Recipe("Q4_K_S", importance=found)
    quantize.run(tmp_path / "in", tmp_path / "plain", "Q4_K_S", report=quiet)
    quantize.run(tmp_path / "in", tmp_path / "out", wanted, report=lines.append)
    assert (
        lines[-2]
        == "1 of 3 tensors are not in the importance matrix, such as output.weight: their errors are not weighed"
    )
    for name, array in arrays.items():
        plain, weighed = (
            float(
                (
                    columns[name].sums[:, None]
                    * (values(tmp_path / end, name) - array.reshape(-1, array.shape[-2], 256)) ** 2
                ).sum()
            )
            for end in ("plain", "out")
        )
        assert weighed < 0.95 * plain
    metadata = gguf.read(tmp_path / "out").metadata
    keys = ("file", "dataset", "entries_count", "chunks_count")
    assert [metadata[f"quantize.imatrix.{key}"] for key in keys] == ["m.gguf", "text", 2, 5]
    monkeypatch.setattr(quantize, "PIECE", 512)
    quantize.run(tmp_path / "in", tmp_path / "pieces", wanted, report=quiet)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "pieces").read_bytes()


def values(path: Path, name: str) -> np.ndarray[Any, Any]:
    read = load(path)[name]
    assert isinstance(read, QuantizedTensor)
    found = read.dequantize().numpy()
    return found if found.ndim == 3 else found[None]


def test_an_importance_matrix_of_another_model(tmp_path: Path) -> None:
    model(tmp_path / "in")
    for name, count, message in (
        (
            "blk.7.attn_q.weight",
            256,
            r"m: it has none of the matrices of .*in: the importance matrix is of another model",
        ),
        (
            "blk.0.attn_q.weight",
            128,
            r"m: 'blk\.0\.attn_q\.weight' has 128 columns, and the matrix of shape \(3, 256\) needs",
        ),
    ):
        found = Importance({name: Columns(np.ones((1, count)), np.ones(1))}, where="m")
        with pytest.raises(FormatError, match=message):
            quantize.run(tmp_path / "in", tmp_path / "out", quantize.Recipe("Q4_0", importance=found), report=quiet)
    assert not (tmp_path / "out").exists()
