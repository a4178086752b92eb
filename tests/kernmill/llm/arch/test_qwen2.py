from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import FormatError

BIASES = {"attn_q.bias": (24,), "attn_k.bias": (12,), "attn_v.bias": (12,)}


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    tiny.check(tiny.make("qwen2", {}, BIASES))


def test_the_biases_are_needed(tiny: Any) -> None:
    with pytest.raises(
        FormatError, match=r"^the file has no tensor blk\.0\.attn_k\.bias, which a qwen2 model needs\.$"
    ):
        tiny.make("qwen2", {}, BIASES | {"attn_k.bias": ()}).model()


def test_stretched_by_yarn(tiny: Any) -> None:
    """Frequencies by hand: of 6 entries at base 100 and a trained context of 64, 4 times as long."""
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64}
    made = tiny.make("qwen2", {}, BIASES, **keys)
    turns = [6 * np.log(64 / (t * 2 * np.pi)) / (2 * np.log(100)) for t in (32, 1)]  # -0.7 and 1.5: from 0 to 2
    low, high = max(0, np.floor(turns[0])), min(5, np.ceil(turns[1]))
    assert (low, high) == (0, 2)
    plain = tiny.Reference(made).layers[0].frequencies
    mixed = plain * np.array([1, 0.5, 0]) + plain / 4 * np.array([0, 0.5, 1])
    tiny.check(made, [tiny.Layer(mixed, growth=1 + 0.1 * np.log(4))] * 2)
