"""A table of mistakes as a test: the call, the class of the error, and the whole message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kernmill import KernmillError

Case = tuple[Callable[[], Any], type[KernmillError], str]


def each_message(cases: Mapping[str, Case]) -> Callable[[str], None]:
    """A test with a row for each mistake."""

    @pytest.mark.parametrize("name", cases)
    def test(name: str) -> None:
        call, kind, message = cases[name]
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == message

    return test
