from __future__ import annotations

import json

import pytest

from kernmill import SettingError
from kernmill.llm.packages import package


def test_a_package_that_is_there() -> None:
    assert package("json", "a test") is json


def test_a_missing_package_names_the_command() -> None:
    with pytest.raises(SettingError) as caught:
        package("kernmill_has_no_such_package", "a tokenizer")
    assert str(caught.value) == (
        "a tokenizer needs the package kernmill_has_no_such_package, which is not installed. "
        "Run: pip install 'kernmill[llm]'"
    )
