"""The node tests of the package onnx: run one, or all with a count (`python -m tests.kernmill.onnx.node_cases`).

A case is a small model, inputs and expected outputs. Cases whose result is random are compared in type and shape.
"""

from __future__ import annotations

import collections
import functools
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

RANDOM = ("test_bernoulli", "test_training_dropout")  # their expected values are one draw of a generator


@functools.cache
def cases() -> dict[str, Any]:
    """All cases by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return {case.name: case for case in load_model_tests(kind="node")}


def fault(name: str) -> str | None:
    """Return the fault in the result of a case, or None."""
    from kernmill.onnx import from_proto

    case = cases()[name]
    try:
        model = from_proto(case.model, name)
        for inputs, expected in case.data_sets:
            found = model(*[_given(x) for x in inputs])
            results = found if isinstance(found, tuple) else (found,)
            for mine, want in zip(results, expected, strict=True):
                _compare(mine, _given(want), case.rtol, case.atol, any(name.startswith(start) for start in RANDOM))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    return None


def _given(value: Any) -> Any:
    """A value of a case: narrow types are protocol buffers."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, list):
        return [_given(v) for v in value]
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _compare(mine: Any, want: Any, rtol: float, atol: float, is_random: bool) -> None:
    if isinstance(want, list) or want is None:
        assert type(mine) is type(want), f"{type(mine).__name__} instead of {type(want).__name__}"
        for a, b in zip(mine or [], want or [], strict=True):
            _compare(a, b, rtol, atol, is_random)
        return
    want = np.asarray(want)
    got = _array(mine)
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind in "OSU":
        assert [str(x) for x in got.ravel()] == [_text(x) for x in want.ravel()], "other strings"
        return
    assert got.dtype == want.dtype, f"{got.dtype} instead of {want.dtype}"
    if is_random:
        return
    if want.dtype.kind == "V" or want.dtype.name.startswith(("float8", "float4", "bfloat", "int4", "uint4", "int2")):
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def _text(x: Any) -> str:
    return x.decode() if isinstance(x, bytes) else str(x)


def _array(value: Any) -> Any:
    """A result as the NumPy array that the cases have."""
    return value if isinstance(value, np.ndarray) else value.numpy()


def main() -> None:
    """Print the number of cases that pass, and a line for each one that does not."""
    chosen = [name for name in cases() if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    with ProcessPoolExecutor(2) as pool:
        faults = dict(zip(chosen, pool.map(fault, chosen, chunksize=8), strict=True))
    wrong = {name: text for name, text in faults.items() if text is not None}
    for name, text in wrong.items():
        print(f"{name}: {text}")
    print(f"{len(chosen) - len(wrong)} of {len(chosen)} pass")
    reasons = collections.Counter(text.split(":")[0] for text in wrong.values())
    print(dict(reasons))


if __name__ == "__main__":
    main()
