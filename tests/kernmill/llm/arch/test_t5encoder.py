"""The encoder of T5 against plain NumPy in float64, and the buckets of distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.llm import Model
from kernmill.llm.arch.t5encoder import buckets
from tests.tiny_models import CASES, HEADS, metadata_of, weights_of

Array = np.ndarray[Any, Any]
NAMES = [name for name, case in CASES.items() if case.arch == "t5encoder"]
TEXTS = [[1, *np.random.default_rng(5).integers(3, 279, 40).tolist()], [1, 8, 2]]


def bucket(distance: int, count: int) -> int:
    """Of a key position minus a query position."""
    side, apart = count // 2, abs(distance)
    exact = side // 2
    far = exact + int(np.log(max(apart, 1) / exact) / np.log(128 / exact) * (side - exact))
    return (apart if apart < exact else min(far, side - 1)) + side * (distance > 0)


@pytest.mark.parametrize("count", [16, 32])
def test_buckets(count: int) -> None:
    distances = np.arange(-300, 301)
    assert buckets(distances, count, False).tolist() == [bucket(int(d), count) for d in distances]
    behind = buckets(distances, count, True)
    assert behind[distances > 0].tolist() == [0] * 300
    assert sorted(set(behind.tolist())) == list(range(count))


def states(name: str, ids: list[int]) -> Array:
    w = {key: array.astype(np.float64) for key, array in weights_of(CASES[name]).items()}
    count, table = metadata_of(CASES[name])["t5encoder.attention.relative_buckets_count"], "enc.blk.0.attn_rel_b.weight"
    falls = np.array([[w[table][bucket(j - i, count)] for j in range(len(ids))] for i in range(len(ids))])

    def norm(x: Array, key: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[key])

    x = w["token_embd.weight"][ids]
    for n in range(3):
        b = f"enc.blk.{n}."
        y = norm(x, f"{b}attn_norm.weight")
        q, k, v = ((y @ w[f"{b}attn_{c}.weight"].T).reshape(len(ids), HEADS, -1) for c in "qkv")
        shares = np.exp(np.einsum("ihd,jhd->ijh", q, k) + falls)
        mixed = np.einsum("ijh,jhd->ihd", shares / shares.sum(1, keepdims=True), v).reshape(len(ids), -1)
        x = x + mixed @ w[f"{b}attn_o.weight"].T
        y = norm(x, f"{b}ffn_norm.weight")
        up = y @ w[f"{b}ffn_up.weight"].T
        if f"{b}ffn_gate.weight" in w:
            gate = y @ w[f"{b}ffn_gate.weight"].T
            up = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        else:
            up = np.maximum(up, 0)
        x = x + up @ w[f"{b}ffn_down.weight"].T
    return norm(x, "enc.output_norm.weight")


def model_of(name: str, metadata: dict[str, Any]) -> Model:
    weights = {key: Tensor(array) for key, array in weights_of(CASES[name]).items()}
    return Model.of(metadata, weights.get, capacity=64, tokenizer=None)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_numpy(name: str) -> None:
    found = model_of(name, metadata_of(CASES[name])).embed(TEXTS, normalize=False).numpy()
    np.testing.assert_allclose(found, [states(name, ids).mean(0) for ids in TEXTS], rtol=1e-4, atol=1e-5)


def test_a_number_of_buckets_that_does_not_fit() -> None:
    metadata = metadata_of(CASES["t5encoder"]) | {"t5encoder.attention.relative_buckets_count": 30}
    with pytest.raises(FormatError) as caught:
        model_of("t5encoder", metadata)
    assert str(caught.value) == (
        "t5encoder.attention.relative_buckets_count is 30: must be a multiple of 4. Convert the file again."
    )
