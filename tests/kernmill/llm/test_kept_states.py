"""Sequences of models with recurrent layers go back to where a state was kept, and otherwise begin anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernmill.llm import Model
from tests.tiny_models import CASES, write

IDS = [1, *np.random.default_rng(3).integers(3, 279, 30).tolist()]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model.from_gguf(write(CASES["granitehybrid"], tmp_path / "a.gguf"), tokenizer=None, capacity=64, block=8)


def test_another_answer_to_a_prompt_begins_before_its_last_token(model: Model) -> None:
    first = list(model.generate(IDS[:20], max_tokens=5))
    before = model.computed_tokens
    assert list(model.generate(IDS[:20], max_tokens=5)) == first
    assert model.computed_tokens - before == 5  # the last token of the prompt, and all new ones but the last
    model.next_logits(IDS[:25])
    assert model.computed_tokens - before == 5 + 6


def test_a_longer_text_goes_on(model: Model) -> None:
    text = [*IDS[:20], *model.generate(IDS[:20], max_tokens=5)]
    before = model.computed_tokens
    model.next_logits([*text, 9])
    assert model.computed_tokens - before == 2  # the last new token was not computed yet


def test_what_differs_earlier_begins_anew(model: Model) -> None:
    """Also where a later text would fit a state that was kept before."""
    whole = model.logits(IDS).numpy()
    for ids in (IDS[:20], [*IDS[:10], 5, 6], IDS[:20], IDS[:12], IDS):
        found = model.next_logits(ids)
        if ids == IDS[: len(ids)]:
            np.testing.assert_allclose(found, whole[len(ids) - 1], atol=1e-4 * float(whole.std()))
    model.reset()
    np.testing.assert_allclose(model.next_logits(IDS[:20]), whole[19], atol=1e-4 * float(whole.std()))
