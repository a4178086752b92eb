"""The device of each node."""

from __future__ import annotations

from kernmill.ir import Ops, UOp, const, dtypes, elementwise, expand, reshape
from tests.compiler.graph.drafts import draft_after
from tests.compiler.kernels import data

X = data(0, 4)
ONES = expand(reshape(const(dtypes.float32, 1.0), (1,)), (4,))


def test_a_value_is_where_its_data_are() -> None:
    y = X * 2.0
    assert draft_after("find_devices", y, devices=["CL"]).device_of[y] == "CL"


def test_a_copy_goes_where_it_says() -> None:
    y = UOp(Ops.COPY, X.dtype, (X,), "CL") + 1.0
    found = draft_after("find_devices", y, devices=["LLVM"]).device_of
    assert (found[X], found[y]) == ("LLVM", "CL")


def test_constants_are_with_their_reader() -> None:
    y = elementwise(Ops.ADD, X, ONES)
    assert draft_after("find_devices", y, devices=["CL"]).device_of[ONES] == "CL"


def test_a_constant_result_is_on_the_default_device() -> None:
    assert draft_after("find_devices", ONES, devices=[]).device_of[ONES] == "LLVM"
