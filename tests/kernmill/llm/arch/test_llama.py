from __future__ import annotations

from typing import Any

import numpy as np


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    tiny.check(tiny.make("llama", {}, {}))


def test_with_a_tied_output_and_divided_frequencies(tiny: Any) -> None:
    made = tiny.make("llama", {"output.weight": (), "rope_freqs.weight": (3,)}, {})
    made.weights["rope_freqs.weight"] = np.array([1.0, 2.0, 8.0])
    plain = tiny.Reference(made).layers[0].frequencies
    tiny.check(made, [tiny.Layer(plain / [1, 2, 8])] * 2)


def test_with_wide_heads_partly_rotated_and_biases(tiny: Any) -> None:
    biases = {"attn_q.bias": (40,), "attn_k.bias": (20,), "attn_v.bias": (20,), "attn_output.bias": (24,)}
    keys = {"attention__key_length": 10, "attention__value_length": 10, "rope__dimension_count": 6}
    tiny.check(tiny.make("llama", {}, biases, **keys))


def test_with_a_linearly_stretched_context(tiny: Any) -> None:
    made = tiny.make("llama", {}, {}, rope__scaling__type="linear", rope__scaling__factor=4.0)
    plain = tiny.Reference(made).layers[0].frequencies
    tiny.check(made, [tiny.Layer(plain / 4)] * 2)


def test_divided_frequencies_are_stretched_as_well(tiny: Any) -> None:
    """Factors in the file switched the stretching off."""
    keys = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    made = tiny.make("llama", {"rope_freqs.weight": (3,)}, {}, **keys)
    made.weights["rope_freqs.weight"] = np.array([1.0, 2.0, 8.0])
    plain = tiny.Reference(made).layers[0].frequencies
    tiny.check(made, [tiny.Layer(plain / [4, 8, 32])] * 2)


def test_biases_of_the_feed_forward_part(tiny: Any) -> None:
    tiny.check(tiny.make("llama", {}, {"ffn_gate.bias": (20,), "ffn_up.bias": (20,), "ffn_down.bias": (24,)}))
