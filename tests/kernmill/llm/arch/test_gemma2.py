from __future__ import annotations

from typing import Any

import numpy as np

NORMS = {"post_attention_norm.weight": (24,), "post_ffw_norm.weight": (24,)}


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    keys = {"attention__sliding_window": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    made = tiny.make("gemma2", {"output.weight": ()}, NORMS, block_count=3, **keys)
    plain = tiny.Reference(made).layers[0].frequencies
    near, far = tiny.Layer(plain, window=3), tiny.Layer(plain)
    tiny.check(made, [near, far, near])


def test_the_largest_model_scales_by_the_embedding(tiny: Any) -> None:
    keys = {"attention__key_length": 8, "attention__value_length": 8}
    architecture = tiny.make("gemma2", {}, NORMS, **keys).model().architecture
    assert architecture.scale() == 8**-0.5
    architecture.largest_layers = 2
    assert architecture.scale() == (24 / 4) ** -0.5
    assert np.isclose(tiny.make("gemma2", {}, NORMS, attention__scale=0.3).model().architecture.scale(), 0.3)
