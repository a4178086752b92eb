from __future__ import annotations

from typing import Any

import numpy as np

from kernmill import Context, Tensor
from kernmill.llm.arch import Config
from kernmill.llm.generate import Model
from kernmill.quant import FloatMatrix
from kernmill.runtime import WeightArena

JOINED = {
    "attn_q.weight": (),
    "attn_k.weight": (),
    "attn_v.weight": (),
    "ffn_gate.weight": (),
    "attn_qkv.weight": (48, 24),
    "ffn_up.weight": (40, 24),
}


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    tiny.check(tiny.make("phi3", {}, JOINED))


def test_long_and_short_contexts_have_factors_of_their_own(tiny: Any) -> None:
    keys = {"rope__scaling__original_context_length": 16, "rope__scaling__attn_factor": 1.19}
    made = tiny.make("phi3", {}, JOINED, **keys)
    made.weights["rope_factors_short.weight"] = np.array([1.0, 1.5, 2.0])
    made.weights["rope_factors_long.weight"] = np.array([1.0, 4.0, 9.0])
    plain = tiny.Reference(made).layers[0].frequencies
    tiny.check(made, [tiny.Layer(plain / [1, 1.5, 2], growth=1.19)] * 2, capacity=16)
    tiny.check(made, [tiny.Layer(plain / [1, 4, 9], growth=1.19)] * 2, capacity=17)


def test_a_window(tiny: Any) -> None:
    made = tiny.make("phi3", {}, JOINED, attention__sliding_window=4)
    plain = tiny.Reference(made).layers[0].frequencies
    tiny.check(made, [tiny.Layer(plain, window=4)] * 2)


def test_biases_of_joined_products(tiny: Any) -> None:
    biases = {"attn_qkv.bias": (48,), "ffn_up.bias": (40,), "ffn_down.bias": (24,), "attn_output.bias": (24,)}
    tiny.check(tiny.make("phi3", {}, JOINED | biases))


def test_a_gate_besides_stays_apart(tiny: Any) -> None:
    """A file may hold more than it needs. Once it was joined with the matrix of both, which then was missing."""
    made = tiny.make("phi3", {}, JOINED | {"ffn_up.weight": (32, 24)}, feed_forward_length=16)
    expected = tiny.Reference(made).logits(tiny.IDS)
    with Context(DEVICE="LLVM"):
        arena = WeightArena("LLVM")
        weights: dict[str, Any] = {name: Tensor(array.astype(np.float32)) for name, array in made.weights.items()}
        for n in range(2):
            for name in ("ffn_gate", "ffn_up"):
                matrix = weights.get(f"blk.{n}.{name}.weight", Tensor.ones(16, 24))
                weights[f"blk.{n}.{name}.weight"] = FloatMatrix.of(matrix, arena)
        model = Model(Config.of(made.metadata), weights.get, capacity=16, block=4)
        np.testing.assert_allclose(model.logits(tiny.IDS).numpy(), expected, rtol=2e-4, atol=2e-5)
