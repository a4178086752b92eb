"""Steps over some sequences of a cache give the logits of one sequence alone, wherever the sequences are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kernmill.llm.generate import Model
from kernmill.llm.sequences.steps import Row, Steps


def test_rows_and_pieces_give_the_logits_of_one_text(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(), tokenizer=None) as model:
        steps = Steps(model, 4, 48, 32, "f32")
        assert steps.sizes == (32,)
        assert [steps.piece_size(left, 48) for left in (1, 19, 20, 32, 40)] == [1, 1, 32, 32, 32]
        assert steps.piece_size(32, 31) == 1
        random = np.random.default_rng(3)
        texts = [random.integers(3, 259, 20).tolist() for _ in range(3)]
        numbers = (2, 0, 3)
        for number, text in zip(numbers, texts, strict=True):
            found = steps.read(number, 0, text, 32)
            np.testing.assert_allclose(found, model.next_logits(text), atol=1e-4)
        for _ in range(3):
            rows = []
            for number, text in zip(numbers, texts, strict=True):
                text.append(int(random.integers(3, 259)))
                rows.append(Row(number, len(text) - 1, text[-1]))
            for text, found in zip(texts, steps.next_tokens(rows), strict=True):
                np.testing.assert_allclose(found, model.next_logits(text), atol=1e-4)
