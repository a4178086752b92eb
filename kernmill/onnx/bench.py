"""Timings of an ONNX model, with onnxruntime next to it where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.ir import DType, SettingError

from .model import OnnxModel, from_proto
from .packages import helper, numpy_helper, onnx
from .reading import model_of

__all__ = ["OnnxTiming", "measure", "with_random_weights"]

_MOST_SECONDS = 20.0  # of the calls of one program
_BATCH_NORM = ("", "scale", "shift", "mean", "variance")  # its inputs


@dataclass(frozen=True)
class OnnxTiming:
    """The first call, the median of later ones, and the largest difference of the results, relative to their size."""

    name: str
    first_ms: float
    median_ms: float
    difference: float | None


def measure(
    path: str, sizes: Mapping[str, int], *, runs: int = 20, threads: int = 1, seed: int | None = None
) -> list[OnnxTiming]:
    """Time a model on random inputs. `sizes` are those of the axes that the model names; others are 1.

    With `seed` weights that the file says are one constant are drawn at random, for both programs.

    Raises:
        FormatError, KernmillError: as `load`.
        SettingError: an input whose shape is not known.
    """
    proto = model_of(path)
    if seed is not None:
        with_random_weights(proto, seed)
    model = from_proto(proto, path, Path(path).resolve().parent)
    inputs = _inputs(model, sizes, path)

    def ours() -> list[Any]:
        found = model(**inputs)
        return [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]

    programs: dict[str, Callable[[], list[Any]]] = {"kernmill": ours}
    if importlib.util.find_spec("onnxruntime") is not None:
        programs["onnxruntime"] = _peer(proto, path, inputs, threads, is_changed=seed is not None)
    return _timings(programs, runs)


def _peer(proto: Any, path: str, inputs: dict[str, Any], threads: int, *, is_changed: bool) -> Callable[[], list[Any]]:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    given = proto.SerializeToString() if is_changed else path
    session = runtime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(None, inputs))


def _timings(programs: Mapping[str, Callable[[], list[Any]]], runs: int) -> list[OnnxTiming]:
    """Calls of all programs alternate, so that each meets the same state of the machine."""
    first, taken, results = dict[str, float](), dict[str, list[float]](), dict[str, list[Any]]()
    for name, program in programs.items():
        start = time.perf_counter()
        results[name] = program()
        first[name], taken[name] = time.perf_counter() - start, []
        program()
    for _ in range(runs):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            taken[name].append(time.perf_counter() - start)
        if sum(map(sum, taken.values())) > _MOST_SECONDS * len(programs):
            break
    known = results["kernmill"]
    return [
        OnnxTiming(
            name,
            first[name] * 1e3,
            float(np.median(taken[name])) * 1e3,
            None if name == "kernmill" else max(map(_difference, known, results[name]), default=0.0),
        )
        for name in programs
    ]


def _difference(a: Any, b: Any) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind not in "biuf" or not a.size:
        return 0.0 if np.array_equal(a, b) else math.inf
    wide, other = a.astype(np.float64), b.astype(np.float64)
    return float(np.abs(wide - other).max() / max(np.abs(other).max(), 1e-30))


def _inputs(model: OnnxModel, sizes: Mapping[str, int], path: str) -> dict[str, Any]:
    """Random values for each input: floats are normal, ints are 0 or 1."""
    draw, found = np.random.default_rng(0), dict[str, Any]()
    kinds = model.dtypes
    if unknown := [name for name in sizes if name not in {n for s in model.inputs.values() for n in s or ()}]:
        names = sorted({n for s in model.inputs.values() for n in s or () if isinstance(n, str)})
        raise SettingError(f"{path}: no axis is named {unknown[0]!r}. Named axes: {', '.join(names) or 'none'}.")
    for name, shape in model.inputs.items():
        kind: DType | None = kinds[name]
        if shape is None or kind is None:
            raise SettingError(f"{path}: the shape of input {name!r} is not known. Call the model from Python.")
        full = [n if isinstance(n, int) else sizes.get(n, 1) if n else 1 for n in shape]
        values = draw.standard_normal(full) if kind.is_float else draw.integers(0, 2, full)
        found[name] = np.asarray(values).astype(kind.name)
    return found


def with_random_weights(proto: Any, seed: int) -> Any:
    """Replace float constants of one value (ConstantOfShape) by values drawn from a seed, in the model itself.

    Light copies of models store their weights so. Weights get the deviation that keeps the size of activations.
    """
    draw = np.random.default_rng(seed)
    graph = proto.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == onnx.TensorProto.INT64}
    roles = {
        name: _BATCH_NORM[i]
        for node in graph.node
        if node.op_type == "BatchNormalization"
        for i, name in enumerate(node.input)
    }
    for node in [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]:
        value = numpy_helper.to_array(helper.get_attribute_value(node.attribute[0])) if node.attribute else np.zeros(1)
        if value.dtype != np.float32:
            continue
        shape, role = tuple(map(int, shapes[node.input[0]])), roles.get(node.output[0], "")
        values = draw.standard_normal(shape, np.float32)
        if role in ("scale", "variance"):  # a scale below 1 keeps sums of many layers small
            values = np.abs(values) * np.float32(0.1) + np.float32(0.5 if role == "scale" else 1)
        else:
            values *= np.float32(math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.1)
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        graph.node.remove(node)
    proto.ir_version = max(4, proto.ir_version)  # from 4 on an initializer need not be an input
    return proto
