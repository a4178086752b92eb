from __future__ import annotations

import reprlib
from array import array
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError
from kernmill.llm.arch import Config


def keys(**changes: Any) -> dict[str, Any]:
    given = {
        "context_length": 32,
        "embedding_length": 16,
        "block_count": 2,
        "feed_forward_length": 24,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in given.items() if v is not None}


def test_what_the_file_does_not_say_has_a_default() -> None:
    config = Config.of(keys())
    assert (config.kv_heads, config.head_width, config.value_width, config.window) == (4, 4, 4, 0)
    assert (config.rope.size, config.rope.base, config.rope.scaling, config.rope.trained_context) == (
        4,
        10000.0,
        "none",
        32,
    )


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope__scaling__factor": 4.0}, ("linear", 4.0)),
        ({"rope__scale_linear": 4.0}, ("linear", 4.0)),
        ({"rope__scale_linear": 4.0, "rope__scaling__factor": 2.0, "rope__scaling__type": "yarn"}, ("yarn", 2.0)),
        ({"rope__scaling__factor": 4.0, "rope__scaling__type": "none"}, ("none", 4.0)),
        ({"rope__scaling__factor": 0.0}, ("none", 1.0)),
    ],
)
def test_a_factor_without_a_type_stretches_evenly(scaling: dict[str, Any], expected: tuple[str, float]) -> None:
    """Left out without a word, as was the key of old files, it made another model of this one."""
    rope = Config.of(keys(**scaling)).rope
    assert (rope.scaling, rope.factor) == expected


def test_numbers_may_come_from_numpy_and_as_one_for_each_layer() -> None:
    config = Config.of(keys(block_count=np.array(2), attention__head_count_kv=[2, 2]))
    assert (config.layers, config.kv_heads) == (2, 2)


def test_sizes_of_layers_may_differ() -> None:
    config = Config.of(keys(attention__head_count_kv=[1, 2], feed_forward_length=[8, 16]))
    assert (config.kv_heads, config.feed_forward) == (2, 16)
    found = [config.of_layer(n) for n in range(2)]
    assert [(of.heads, of.kv_heads, of.feed_forward) for of in found] == [(4, 1, 8), (4, 2, 16)]


def test_a_pattern_is_a_period_or_a_list() -> None:
    assert Config.of(keys()).window_pattern == 0
    assert Config.of(keys(attention__sliding_window_pattern=6)).window_pattern == 6
    assert Config.of(keys(attention__sliding_window_pattern=[1, 0])).window_pattern == (True, False)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"block_count": None}, "the file has no llama.block_count, which is required."),
    (
        {"attention__layer_norm_rms_epsilon": None},
        "the file has no llama.attention.layer_norm_rms_epsilon, which is required.",
    ),
    ({"block_count": 0}, "llama.block_count is 0, not an integer from 1 to 2147483647."),
    ({"block_count": 2.5}, "llama.block_count is 2.5, not an integer from 1 to 2147483647."),
    ({"block_count": np.array([2])}, "llama.block_count is array([2]), not an integer from 1 to 2147483647."),
    ({"block_count": True}, "llama.block_count is True, not an integer from 1 to 2147483647."),
    ({"context_length": 2**31}, "llama.context_length is 2147483648, not an integer from 1 to 2147483647."),
    ({"embedding_length": 2**40}, "llama.embedding_length is 1099511627776, not an integer from 1 to 2147483647."),
    ({"attention__key_length": 0}, "llama.attention.key_length is 0, not an integer from 1 to 2147483647."),
    ({"rope__freq_base": float("nan")}, "llama.rope.freq_base is nan, not a finite number >= 0."),
    ({"rope__freq_base": 0.0}, "llama.rope.freq_base is 0: must be at least 1."),
    ({"rope__freq_base": "x"}, "llama.rope.freq_base is 'x', not a finite number >= 0."),
    ({"attention__head_count_kv": 3}, "llama.attention.head_count_kv: 3 does not divide 4 heads."),
    ({"attention__head_count_kv": [1, 3]}, "llama.attention.head_count_kv: 3 does not divide 4 heads."),
    ({"attention__head_count_kv": [1, 0]}, "llama.attention.head_count_kv is 0, not an integer from 1 to 2147483647."),
    ({"ssm__inner_size": [1, 2]}, "llama.ssm.inner_size differs from layer to layer, which is not supported yet."),
    ({"attention__head_count": 64}, "llama.attention.head_count: 64 heads do not fit an embedding of 16."),
    ({"rope__dimension_count": 3}, "llama.rope.dimension_count is 3: not even, or more than 4 a head."),
    ({"rope__dimension_count": 6}, "llama.rope.dimension_count is 6: not even, or more than 4 a head."),
    (
        {"rope__scaling__type": "su"},
        "llama.rope.scaling.type is 'su': not one of none, linear, yarn, longrope.",
    ),
    ({"expert_count": -8}, "llama.expert_count is -8, not an integer from 0 to 2147483647."),
    ({"attention__head_count_kv": []}, "llama.attention.head_count_kv has 0 entries for 2 layers."),
    ({"attention__head_count_kv": [2] * 3}, "llama.attention.head_count_kv has 3 entries for 2 layers."),
    ({"block_count": [2, 2]}, "llama.block_count is [2, 2], not an integer from 1 to 2147483647."),
    (
        {"block_count": array("B", bytes(10**7))},
        "llama.block_count is array('B', [0, 0, 0, 0, 0, ..]), not an integer from 1 to 2147483647.",
    ),
    (
        {"rope__freq_base": "9" * 10**7},
        f"llama.rope.freq_base is '{'9' * 42}..{'9' * 43}', not a finite number >= 0.",
    ),
    ({"rope__scaling__type": 5}, "llama.rope.scaling.type is 5, not a string."),
    (
        {"attention__sliding_window_pattern": [True]},
        "llama.attention.sliding_window_pattern has 1 entries for 2 layers.",
    ),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS, ids=lambda value: reprlib.repr(value)[:40])
def test_a_key_that_makes_no_sense_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as caught:
        Config.of(keys(**changes))
    assert str(caught.value) == message


RANGES = {
    "rope.scaling.attn_factor": ((1e30, 1e-9, 0.0), "0.01, 100"),
    "rope.scaling.factor": ((1e-300, 1e30), "0.001, 1e+06"),
    "rope.scale_linear": ((1e-300, 1e30), "0.001, 1e+06"),
    "rope.scaling.yarn_beta_fast": ((1e308,), "0, 1e+06"),
    "rope.scaling.yarn_beta_slow": ((1e308,), "0, 1e+06"),
    "rope.freq_base_swa": ((5e-324, 1e300), "1, 1e+30"),
    "attention.layer_norm_rms_epsilon": ((1e39,), "0, 1"),
    "attn_logit_softcapping": ((1e-300, 1e39), "1e-06, 1e+06"),
    "final_logit_softcapping": ((1e-300, 1e39), "1e-06, 1e+06"),
    "attention.scale": ((1e-300, 1e39), "1e-06, 1e+06"),
}


@pytest.mark.parametrize("key", RANGES)
def test_a_number_that_makes_all_others_infinite_is_refused(key: str) -> None:
    """An attn_factor of 1e30 was a warning of NumPy's, and logits that are no numbers."""
    values, ends = RANGES[key]
    for value in values:
        with pytest.raises(FormatError) as caught:
            Config.of(keys(**{key.replace(".", "__"): value}))
        assert str(caught.value) == (
            f"llama.{key} is {value:g}, out of range [{ends}]: the model would produce NaN or constant output. The "
            "file is damaged, or was written by a faulty converter."
        )


def test_a_model_whose_tokens_see_what_follows() -> None:
    assert Config.of(keys(attention__causal=True)) == Config.of(keys())
    assert not Config.of(keys(attention__causal=False)).is_causal
    with pytest.raises(FormatError) as caught:
        Config.of(keys(attention__causal=5))
    assert str(caught.value) == "llama.attention.causal is 5, not a bool."


def test_an_architecture_is_a_text() -> None:
    with pytest.raises(FormatError) as caught:
        Config.of(keys() | {"general.architecture": ("llama",)})
    assert str(caught.value) == (
        "general.architecture is ('llama',), not the name of an architecture. Convert the file again."
    )
