"""Layers of a model over devices: which split is chosen, what llama.cpp's options do, and that the text is the same."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from kernmill import Context, OutOfMemoryError, SettingError
from kernmill.ir import DeviceSpec, DeviceTable, Link
from kernmill.llm.split import SplitOptions, choose_split
from kernmill.runtime import Properties, device_list, device_rates

LAYERS, WIDTH = 6, 8
SIZES = {f"blk.{n}.{name}.weight": 1000 for n in range(LAYERS) for name in ("attn_q", "ffn_up", "ffn_up_exps")} | {
    "token_embd.weight": 5000, "output.weight": 5000, "output_norm.weight": 10,
}  # fmt: skip


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceSpec]:
    """Devices by name, which a test may change. PYTHON and NULL stand for accelerators beside LLVM."""
    specs = {
        name: DeviceSpec(name, bytes_per_ns=rate, limit_bytes=1 << 30)
        for name, rate in (("LLVM", 1.0), ("PYTHON", 4.0), ("NULL", 2.0))
    }

    def made(leaves: Any, nodes: Any) -> DeviceTable:
        names = device_list()
        links = {pair: Link(100.0, 1.0) for pair in itertools.permutations(names, 2)}
        return DeviceTable(tuple(specs[name] for name in names), links)

    monkeypatch.setattr(device_rates, "device_table", made)
    monkeypatch.setattr("kernmill.llm.split.get_device", lambda name: Kind(name, "cpu" if name == "LLVM" else "accel"))
    monkeypatch.setattr("kernmill.llm.split.room", lambda device: specs[device.name].limit_bytes)
    return specs


class Kind:
    """A device, as far as a split looks at it."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self.limits = Properties(wraps_host_memory=kind == "cpu")


def homes(names: str, **wanted: Any) -> tuple[list[str], str, str]:
    """Devices of layers by the first letter of their names, of the output and of the embedding."""
    with Context(DEVICE=names):
        split = choose_split(SIZES, LAYERS, 100, WIDTH, SplitOptions(**wanted))
    return [name[0] for name in split.layers], split.output, split.device_of("token_embd.weight")


def test_the_fastest_device_gets_all_that_fits(table: dict[str, DeviceSpec]) -> None:
    assert homes("LLVM,PYTHON") == (["P"] * 6, "PYTHON", "LLVM")
    table["PYTHON"] = table["PYTHON"]._replace(limit_bytes=3100 * 2 * 16 // 15 + 16)
    layers, output, _ = homes("LLVM,PYTHON")
    assert layers.count("P") == 2
    assert layers == sorted(layers) or layers == sorted(layers, reverse=True)
    assert output == ("PYTHON" if layers[-1] == "P" and layers.count("P") < 2 else "LLVM")


def test_three_devices(table: dict[str, DeviceSpec]) -> None:
    for name in ("PYTHON", "NULL"):
        table[name] = table[name]._replace(limit_bytes=3100 * 2 * 16 // 15 + 16)
    layers, _, _ = homes("LLVM,PYTHON,NULL")
    assert sorted(layers) == ["L", "L", "N", "N", "P", "P"]


def test_the_split_is_the_best_of_all_ranges(table: dict[str, DeviceSpec]) -> None:
    table["PYTHON"] = table["PYTHON"]._replace(limit_bytes=3100 * 3 * 16 // 15 + 16)
    with Context(DEVICE="LLVM,PYTHON"):
        split = choose_split(SIZES, LAYERS, 100, WIDTH)
    units = [3000] * LAYERS + [5010]

    def time(devices: tuple[str, ...]) -> float:
        held = sum(u + 100 for u, d in zip(units, devices, strict=True) if d == "PYTHON")
        if held > 3100 * 3 + 100:
            return math.inf
        read = sum(u / table[d].bytes_per_ns for u, d in zip(units, devices, strict=True))
        return read + sum(100 + 4 * WIDTH for a, b in itertools.pairwise(("LLVM", *devices)) if a != b)

    best = min(itertools.product(("LLVM", "PYTHON"), repeat=7), key=time)
    assert time((*split.layers, split.output)) == time(best)


def test_the_host_is_the_last_cpu_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: the first one was the host. So `--device CL,LLVM -ngl 3` gave three layers to LLVM where CL is
    a CPU too, and all layers on LLVM had their embedding on CL. Without a CPU the last device had no share in -ts."""
    kinds = {"LLVM": "cpu", "NULL": "cpu", "PYTHON": "accel"}
    monkeypatch.setattr("kernmill.llm.split.get_device", lambda name: Kind(name, kinds[name]))
    assert homes("NULL,LLVM", gpu_layers=3) == (["L"] * 4 + ["N"] * 2, "NULL", "LLVM")
    assert homes("LLVM,NULL") == (["N"] * 6, "NULL", "NULL")
    kinds |= dict.fromkeys(kinds, "accel")
    assert homes("PYTHON,NULL", shares=(1.0, 1.0)) == (["P"] * 4 + ["N"] * 2, "NULL", "NULL")


def test_options_of_llama_cpp() -> None:
    assert homes("LLVM,PYTHON", gpu_layers=0) == (["L"] * 6, "LLVM", "LLVM")
    assert homes("LLVM,PYTHON", gpu_layers=3) == (["L"] * 4 + ["P"] * 2, "PYTHON", "LLVM")
    assert homes("LLVM,PYTHON", gpu_layers=-1) == (["P"] * 6, "PYTHON", "LLVM")
    assert homes("LLVM,PYTHON", gpu_layers=99) == (["P"] * 6, "PYTHON", "LLVM")
    assert homes("LLVM,PYTHON,NULL", shares=(3.0, 1.0)) == (["P"] * 6, "NULL", "LLVM")
    assert homes("LLVM,PYTHON,NULL", shares=(1.0, 1.0)) == (["P"] * 4 + ["N"] * 2, "NULL", "LLVM")
    assert homes("LLVM,PYTHON,NULL", mode="none", main=1) == (["N"] * 6, "NULL", "LLVM")


def test_overrides_and_experts() -> None:
    with Context(DEVICE="LLVM,PYTHON"):
        split = choose_split(SIZES, LAYERS, 100, WIDTH, SplitOptions(-1, overrides=((r"blk\.[01]\.attn", "CPU"),)))
        assert [split.device_of(f"blk.{n}.attn_q.weight") for n in range(3)] == ["LLVM", "LLVM", "PYTHON"]
        split = choose_split(SIZES, LAYERS, 100, WIDTH, SplitOptions(-1, host_experts=2, cache_on_host=True))
        assert [split.device_of(f"blk.{n}.ffn_up_exps.weight") for n in range(3)] == ["LLVM", "LLVM", "PYTHON"]
        assert split.caches == ("LLVM",) * LAYERS
        split = choose_split(SIZES, LAYERS, 100, WIDTH, SplitOptions(-1, host_experts=-1))
        assert {split.device_of(f"blk.{n}.ffn_up_exps.weight") for n in range(LAYERS)} == {"LLVM"}
        assert split.text() == "layers 0-5 PYTHON, output PYTHON, embedding LLVM"


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"overrides": (("ffn", "GPU7"),)}, "-ot ffn=GPU7: GPU7 is not a device of DEVICE=LLVM,PYTHON."),
        ({"overrides": (("(", "CPU"),)}, "is not a regular expression"),
        ({"overrides": (("nothing", "CPU"),)}, "'nothing' matches no tensor"),
        ({"shares": (1.0, 1.0)}, "-ts 1,1: must be up to 1 shares >= 0, one for each of PYTHON."),
        ({"shares": (0.0,)}, "-ts 0: must be"),
        ({"mode": "none", "main": 2}, "-mg 2: must be 0 to 0"),
    ],
)
def test_options_that_cannot_be(wanted: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        homes("LLVM,PYTHON", **wanted)
    assert sentence in str(caught.value)


def test_a_model_that_fits_nowhere(table: dict[str, DeviceSpec]) -> None:
    for name in table:
        table[name] = table[name]._replace(limit_bytes=4000)
    with pytest.raises(OutOfMemoryError) as caught:
        homes("LLVM,PYTHON")
    assert "this model does not fit: its layers, output and cache take" in str(caught.value)


def test_a_split_that_was_asked_for_and_does_not_fit(table: dict[str, DeviceSpec]) -> None:
    """Named regression: the message was that of the first buffer without room, after half of the weights were loaded;
    and caches on the host, and weights of -ot, took no memory from what was to be filled."""
    table["NULL"] = table["NULL"]._replace(limit_bytes=7000)
    with pytest.raises(
        OutOfMemoryError, match=r"this split does not fit.*\nLLVM .*\nPYTHON .*\nNULL +0\.01 MiB needed"
    ):
        homes("LLVM,PYTHON,NULL", shares=(1.0, 1.0))
    assert homes("LLVM,PYTHON,NULL", shares=(3.0, 1.0))[1] == "NULL"
    table["PYTHON"] = table["PYTHON"]._replace(limit_bytes=3100 * 4 * 16 // 15 + 16)
    assert homes("LLVM,PYTHON")[0].count("P") == 4
    assert homes("LLVM,PYTHON", overrides=(("token_embd", "PYTHON"),))[0].count("P") == 2
