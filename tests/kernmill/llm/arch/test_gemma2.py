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


def test_the_first_files_do_not_say_their_window_and_caps(tiny: Any) -> None:
    """They came without a window and without caps, so that the text was another model's."""
    config = tiny.make("gemma2", {}, NORMS).model().architecture.config
    assert (config.window, config.attention_cap, config.logit_cap) == (4096, 50.0, 30.0)
    said = {"attention__sliding_window": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    config = tiny.make("gemma2", {}, NORMS, **said).model().architecture.config
    assert (config.window, config.attention_cap, config.logit_cap) == (3, 2.0, 3.0)
