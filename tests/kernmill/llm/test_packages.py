from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kernmill import SettingError
from kernmill.llm.packages import check_package, package


def test_a_package_that_is_there() -> None:
    check_package("json", "a test")
    assert package("json", "a test") is json


@pytest.mark.parametrize("ask", [package, check_package])
def test_a_missing_package_names_the_command(ask: Callable[[str, str], object]) -> None:
    with pytest.raises(SettingError) as caught:
        ask("kernmill_has_no_such_package", "a tokenizer")
    assert str(caught.value) == (
        "a tokenizer needs the package kernmill_has_no_such_package, which is not installed. "
        "Run: pip install 'kernmill[llm]'"
    )
