"""Models from files: recorded outputs of real ones, and every mistake in a file or a call in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed (it comes with the extra `dev`)")

import onnx
from onnx import TensorProto, helper, numpy_helper

from kernmill import Context, DTypeError, FormatError, KernmillError, ShapeError, Tensor, jit
from kernmill.ir import Ops
from kernmill.onnx import OnnxModel, from_proto, load
from kernmill.onnx.values import Known

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with Context(DEVICE="LLVM"):
        yield


def read(path: Path) -> Any:
    tensor = TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def test_mnist_gives_its_recorded_outputs(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("onnx_mnist8")
    model = load(folder / "model.onnx")
    assert model.inputs == {"Input3": (1, 1, 28, 28)}
    for case in sorted(folder.glob("test_data_set_*")):
        found = model(read(case / "input_0.pb"))
        np.testing.assert_allclose(found.numpy(), read(case / "output_0.pb"), rtol=1e-4, atol=1e-2)


def test_super_resolution_gives_its_recorded_output(shared_data: Callable[[str], Path]) -> None:
    case = shared_data("onnx_superres10")
    found = load(case / "model.onnx")(read(case / "test_data_set_0/input_0.pb"))
    np.testing.assert_allclose(found.numpy(), read(case / "test_data_set_0/output_0.pb"), rtol=1e-3, atol=1e-5)


LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
         "vgg19", "zfnet512")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_real_graphs_give_their_recorded_outputs(name: str, shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("onnx_light")
    model = load(folder / f"light_{name}.onnx")
    (shape,) = model.inputs.values()
    found = model(np.ones(shape, np.float32))
    want = read(folder / f"light_{name}_output_0.pb")
    np.testing.assert_allclose(found.numpy().ravel(), want.ravel(), rtol=1e-3, atol=1e-6)


def made(nodes: list[Any], constants: list[Any] | None = None, opset: int = 21, **options: Any) -> Any:
    x = helper.make_tensor_value_info("x", FLOAT, options.get("shape", ["n", 4]))
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def relu() -> OnnxModel:
    return from_proto(made([helper.make_node("Relu", ["x"], ["y"])]))


def test_a_model_is_captured_for_each_shape() -> None:
    model = relu()
    for rows in (2, 3, 2, 2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(model(Tensor(x)).numpy(), x.clip(0))
    np.testing.assert_array_equal(model(x=-np.ones((1, 4), np.float32)).numpy(), np.zeros((1, 4)))


def test_results_of_arrays_are_not_changed_by_later_calls() -> None:
    """Regression: arrays of later calls are copied to the same memory, which a result may be."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = from_proto(made(nodes))
    kept = [model(np.full((2, 4), n, np.float32)) for n in range(6)]
    assert [tensor.numpy()[0, 0] for tensor in kept] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DTypeError, match="float64, and the model takes float32"):
        model(np.zeros((2, 4)))
    backwards = np.arange(8, dtype=np.float32).reshape(2, 4)[::-1]
    np.testing.assert_array_equal(model(x=backwards).numpy(), backwards)


def test_a_model_inside_of_a_captured_function() -> None:
    """Regression: an array that is not an argument is a constant of the capture."""
    model = relu()
    for _ in range(3):
        model(np.zeros((1, 4), np.float32))
    fast = jit(lambda x: model(x) + model(np.full((1, 4), 2, np.float32)))
    for n in range(4):
        model(np.full((1, 4), 7, np.float32))
        np.testing.assert_array_equal(fast(Tensor.full((1, 4), float(n))).numpy(), np.full((1, 4), n + 2.0))


def test_an_input_that_requires_a_gradient_records_none() -> None:
    model = relu()
    for _ in range(3):
        assert not model(Tensor.ones(1, 4, requires_grad=True)).requires_grad


def test_known_weights_of_windows_are_stored_by_their_channels() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 4, 3, 2)).astype(np.float32)
    known = Known(weight)
    view = known.ordered((1, 2, 3, 0))
    assert view.uop.op is Ops.PERMUTE
    assert known.ordered((1, 2, 3, 0)).uop.src[0] is view.uop.src[0]  # made once
    np.testing.assert_array_equal(view.numpy(), weight)
    with pytest.raises(ShapeError, match="Conv: shapes"):
        from_proto(made([helper.make_node("Conv", ["x", "w"], ["y"])], [numpy_helper.from_array(weight, "w")]))(
            np.zeros((1, 4), np.float32)
        )


def test_shapes_that_values_compute_are_folded() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["rows"], axis=0),
        helper.make_node("Concat", ["rows", "two"], ["new"], axis=0),
        helper.make_node("Reshape", ["x", "new"], ["y"]),
    ]
    constants = [helper.make_tensor(n, TensorProto.INT64, [len(v)], v) for n, v in (("zero", [0]), ("two", [2, 2]))]
    model = from_proto(made(nodes, constants))
    for _ in range(3):
        assert model(np.ones((3, 4), np.float32)).shape == (3, 2, 2)


def test_shapes_that_depend_on_data_are_computed() -> None:
    model = from_proto(made([helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)]))
    for count in (1, 3, 2):
        x = np.zeros((2, 4), np.float32)
        x[0, :count] = 1
        assert model(x).shape == (2, count)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((np.ones((2, 3), np.float32),), r"input 'x': shape \(2, 3\), and the model takes \(n, 4\)"),
        ((np.ones((2, 4)),), "input 'x': float64, and the model takes float32"),
        ((), "the inputs x are missing"),
        ((np.ones((2, 4), np.float32), 1), "it takes the inputs x"),
    ],
)
def test_a_call_that_does_not_fit(given: tuple[Any, ...], text: str) -> None:
    with pytest.raises((ShapeError, DTypeError), match=text):
        relu()(*given)


def test_all_unknown_operators_are_listed() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["a"]), helper.make_node("Bar", ["a"], ["y"], domain="com.example")]
    model = made(nodes)
    with pytest.raises(KernmillError, match=r"operators that are not supported: Foo, com\.example\.Bar"):
        from_proto(model)


NODE = helper.make_node
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a later version": (lambda: made([NODE("Relu", ["x"], ["y"])], opset=999), "version 999"),
    "a cycle": (lambda: made([NODE("Relu", ["b"], ["a"]), NODE("Relu", ["a"], ["b"]), NODE("Relu", ["x"], ["y"])]),
                "the graph has a cycle"),
    "an output of no node": (lambda: made([NODE("Relu", ["x"], ["z"])]), "the outputs y come from no node"),
    "two writers": (lambda: made([NODE("Relu", ["x"], ["y"]), NODE("Abs", ["x"], ["y"])]), "two nodes write 'y'"),
    "a constant that lies": (lambda: made([NODE("Add", ["x", "c"], ["y"])], [TensorProto(
        name="c", dims=[1 << 40], data_type=1, raw_data=b"1234")]), "its values do not fit shape"),
    "a negative size": (lambda: made([NODE("Add", ["x", "c"], ["y"])], [TensorProto(
        name="c", dims=[-1], data_type=1, raw_data=b"1234")]), "a size of -1"),
    "an unknown type": (lambda: made([NODE("Add", ["x", "c"], ["y"])], [TensorProto(
        name="c", dims=[1], data_type=99, raw_data=b"1234")]), "its values do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_contradicts_itself(name: str) -> None:
    make, text = WRONG[name]
    with pytest.raises(FormatError, match=text):
        from_proto(make())


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (NODE("Relu", ["x"], ["y"], alpha=1.0), "Relu: attributes alpha are unknown"),
        (NODE("Transpose", ["x"], ["y"], perm=[0, 7]), "Transpose"),
        (NODE("Flatten", ["x", "x"], ["y"]), "2 inputs, and it takes 1"),
        (NODE("Conv", ["x", "x"], ["y"]), "Conv"),
        (NODE("MatMul", ["x", "x"], ["y"]), "MatMul"),
        (NODE("Cast", ["x"], ["y"], to=14), "complex64 is not supported"),
    ],
)
def test_a_node_that_does_not_fit_is_named(node: Any, text: str) -> None:
    with pytest.raises(KernmillError, match=text):
        from_proto(made([node]))(np.ones((2, 4), np.float32))


@pytest.mark.parametrize("shape", [(0, 4), (1, 4)])
def test_empty_inputs(shape: tuple[int, ...]) -> None:
    nodes = [NODE("Relu", ["x"], ["a"]), NODE("Add", ["a", "a"], ["y"])]
    assert from_proto(made(nodes))(np.ones(shape, np.float32)).shape == shape


def test_no_shape_at_all() -> None:
    model = from_proto(made([NODE("ReduceSum", ["x"], ["a"], keepdims=0), NODE("Exp", ["a"], ["y"])], shape=[]))
    assert model(np.float32(0)).item() == 1


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\xff" * 100, bytes(1000)])
def test_bytes_that_are_no_model(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(FormatError, match="not an ONNX model"):
        load(tmp_path / "m.onnx")
    with pytest.raises(FormatError, match=r"missing\.onnx"):
        load(tmp_path / "missing.onnx")


# --- external data ---------------------------------------------------------------------------------------------------
def with_file(location: str, **facts: str) -> Any:
    tensor = TensorProto(name="c", dims=[4], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=value)
    return made([NODE("Add", ["x", "c"], ["y"])], [tensor])


def test_external_data_are_read_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/weights").write_bytes(bytes(8) + np.arange(4, dtype=np.float32).tobytes())
    onnx.save(with_file("sub/weights", offset="8", length="16"), tmp_path / "m.onnx")
    np.testing.assert_array_equal(load(tmp_path / "m.onnx")(np.ones((1, 4), np.float32)).numpy(), [[1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("location", "facts", "text"),
    [
        ("../secret", {}, "is not named by a path below"),
        ("a/../../secret", {}, "is not named by a path below"),
        ("", {}, "is not named by a path below"),
        ("missing", {}, "cannot be read"),
        ("linked", {}, "is a link"),
        ("folder/secret", {}, "is a link"),
        ("hard", {}, "a hard link"),
        ("sub", {}, "is not a file of its own|cannot be read"),
        ("w", {"offset": "8", "length": "16"}, "has 16 bytes"),
        ("w", {"offset": "-4"}, "has 16 bytes"),
        ("w", {"offset": "x"}, "cannot be read"),
    ],
)
def test_external_data_outside_of_the_folder(tmp_path: Path, location: str, facts: dict[str, str], text: str) -> None:
    inside, outside = tmp_path / "model", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (outside / "secret").write_bytes(bytes(16))
    (inside / "w").write_bytes(bytes(16))
    (inside / "sub").mkdir()
    (inside / "linked").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(outside)
    (inside / "hard").hardlink_to(tmp_path / "secret")
    (inside / "m.onnx").write_bytes(with_file(location, **facts).SerializeToString())
    with pytest.raises(FormatError, match=text):
        load(inside / "m.onnx")
