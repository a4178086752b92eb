"""`kernmill onnx`: what a model takes, its time, and weights drawn from a seed against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed (it comes with the extra `dev`)")

import onnx
from onnx import TensorProto, helper

from kernmill import Context, SettingError
from kernmill.commands.cli import main
from kernmill.onnx.bench import measure

LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    with Context(DEVICE="LLVM"):
        yield


@pytest.fixture
def model(tmp_path: Path) -> str:
    node = helper.make_node("Relu", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)])
    proto.ir_version = 10
    onnx.save(proto, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_what_a_model_takes(model: str, capsys: Any) -> None:
    assert main(["onnx", model]) == 0
    assert capsys.readouterr().out == "input   x  float32 (batch, 4)\noutput  y\nnodes   1 Relu\n"


def test_times(model: str, capsys: Any) -> None:
    assert main(["onnx", model, "--bench", "--runs", "2", "--size", "batch=3", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].startswith("kernmill ")
    assert "onnxruntime" in out


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("rows=3", "no axis is named 'rows'. Named axes: batch."),
        ("3", "--size '3' is not NAME=NUMBER. Write for example --size batch=8."),
    ],
)
def test_a_size_that_does_not_fit(model: str, size: str, text: str, capsys: Any) -> None:
    assert main(["onnx", model, "--bench", "--size", size]) == 2
    assert text in capsys.readouterr().err


def test_an_input_without_a_shape(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    with pytest.raises(SettingError, match=r"the shape of input 'x' is not known\. Call the model from Python"):
        measure(str(tmp_path / "m.onnx"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_random_weights_give_the_results_of_onnxruntime(name: str, shared_data: Callable[[str], Path]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    found = measure(str(shared_data("onnx_light") / f"light_{name}.onnx"), {}, runs=1, seed=1)
    assert found[-1].name == "onnxruntime"
    assert found[-1].difference is not None
    assert found[-1].difference < 1e-4
