"""The trial of a matrix unit: its kernel means what its third buffer must hold."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from kernmill.ir import Unit, dtypes
from kernmill.renderers import AMX_UNITS, MMA_UNITS

matrix_unit_trial: Any = importlib.import_module("kernmill.runtime.programs.matrix_unit_trial").matrix_unit_trial
NUMPY = {dtypes.int8: np.int8, dtypes.uint8: np.uint8, dtypes.float16: np.float16}


UNITS = [unit for units in (*AMX_UNITS.values(), MMA_UNITS) for unit in units if unit.a in NUMPY]


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_what_must_come_out_is_the_sum_of_the_products(unit: Unit) -> None:
    uops, (left, right, result), wanted = matrix_unit_trial(unit)
    a = np.frombuffer(left.raw[:-1], NUMPY[unit.a]).reshape(-1, unit.m, unit.k).astype(np.float64)
    b = np.frombuffer(right.raw[:-1], NUMPY[unit.b]).reshape(-1, unit.k // unit.group, unit.n, unit.group)
    rows = b.transpose(0, 1, 3, 2).reshape(-1, unit.k, unit.n).astype(np.float64)
    sums = (a @ rows).sum(0)
    held = np.frombuffer(wanted[:-1], np.float32 if unit.c is dtypes.float32 else np.int32)
    np.testing.assert_array_equal(held.reshape(unit.m, unit.n), sums)
    assert set(result.raw) == {0}
    assert uops[-1].op.name == "END" or not unit.items
