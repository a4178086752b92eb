from __future__ import annotations

import pytest

from kernmill.ir import SettingError
from kernmill.llm.sequences import Generation, GenerationRequest, Piece, Usage


def test_a_generation_waits_for_its_pieces_and_its_end() -> None:
    woken: list[int] = []
    generation = Generation(Usage(3), None, lambda: woken.append(1))
    generation.give(Piece("a", (1,)))
    generation.give(Piece("b", (2,)))
    assert next(generation).text == "a"
    generation.end("stop")
    generation.end("length")
    assert generation.text() == "b"
    assert [*generation] == []
    assert generation.finish_reason == "stop"
    generation.cancel()
    assert (generation.is_cancelled, woken) == (True, [1])


def test_an_error_is_raised_where_the_text_is_read() -> None:
    generation = Generation(Usage(3), None, lambda: None)
    generation.end("error", ValueError("broken"))
    with pytest.raises(ValueError, match=r"^broken$"):
        next(generation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, r"^GenerationRequest: max_tokens=-1: must be an integer >= 0, or None\.$"),
        ({"max_tokens": True}, r"^GenerationRequest: max_tokens=True: must be an integer >= 0, or None\.$"),
        ({"logprobs": 1001}, r"^GenerationRequest: logprobs=1001: must be an integer from 0 to 1000\.$"),
        ({"sampling": 3}, r"^GenerationRequest: sampling=3\. Give SamplingOptions\(\.\.\)\.$"),
        ({"grammar": "root"}, r"^GenerationRequest: grammar='root': it has no start\(\)\. Give a Grammar\.$"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        GenerationRequest([1], **options)  # type: ignore[arg-type]
