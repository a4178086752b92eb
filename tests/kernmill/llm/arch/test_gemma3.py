from __future__ import annotations

from typing import Any

import numpy as np
import pytest

NORMS = {
    "attn_q_norm.weight": (6,),
    "attn_k_norm.weight": (6,),
    "post_attention_norm.weight": (24,),
    "post_ffw_norm.weight": (24,),
}


def layers(tiny: Any, made: Any, local: list[bool], local_base: float, factor: float) -> list[Any]:
    exponents = np.array([0, 2 / 6, 4 / 6])
    near = tiny.Layer(local_base**-exponents, window=made.key("attention.sliding_window"))
    far = tiny.Layer(made.key("rope.freq_base") ** -exponents / factor)
    return [near if is_local else far for is_local in local]


def test_it_computes_what_the_reference_does(tiny: Any) -> None:
    keys = {"block_count": 7, "rope__freq_base": 1e6, "attention__sliding_window": 3}
    made = tiny.make("gemma3", {"output.weight": ()}, NORMS, **keys)
    tiny.check(made, layers(tiny, made, [True] * 5 + [False, True], 1e4, 1.0))


@pytest.mark.parametrize("pattern", [2, [True, False]])
def test_with_soft_caps_and_a_pattern_of_its_own(tiny: Any, pattern: Any) -> None:
    keys = {
        "attention__sliding_window": 4,
        "attention__sliding_window_pattern": pattern,
        "rope__freq_base_swa": 50.0,
        "rope__scaling__type": "linear",
        "rope__scaling__factor": 8.0,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "attention__scale": 0.7,
    }
    made = tiny.make("gemma3", {}, NORMS, **keys)
    tiny.check(made, layers(tiny, made, [True, False], 50.0, 8.0))


def test_without_a_window_every_layer_sees_everything(tiny: Any) -> None:
    made = tiny.make("gemma3", {}, NORMS)
    assert made.model().architecture.is_local == [False, False]


def test_a_file_without_window_and_caps_has_none(tiny: Any) -> None:
    config = tiny.make("gemma3", {}, NORMS).model().architecture.config
    assert (config.window, config.attention_cap, config.logit_cap) == (0, 0.0, 0.0)
