"""Training: the same numbers as the model that runs the file, gradients for every weight, and a loss that falls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernmill import FormatError, SettingError, Tensor
from kernmill.formats import gguf
from kernmill.llm import Learner, Model, llama_metadata
from kernmill.llm.arch import ARCHITECTURES, Config
from kernmill.llm.train import shapes_of

TEXTS = [[1, 5, 6, 7, 8, 2], [1, 7, 8, 5, 2], [1, 3]]
SIZES = llama_metadata(16, 1, 12, heads=2)


def test_the_file_computes_what_was_learned(tmp_path: Path) -> None:
    learner = Learner(SIZES, 9, 6)
    reports: list[str] = []
    loss = learner.fit(TEXTS, 24, batch=3, rate=1e-2, report=reports.append)
    first = float(reports[0].split()[3])
    assert len(reports) == 13
    assert loss < first - 0.3
    learner.save(tmp_path / "a.gguf")
    assert gguf.read(tmp_path / "a.gguf").metadata["general.file_type"] == 0  # all float32
    model = Model.from_gguf(tmp_path / "a.gguf", capacity=8, block=4)
    ids = [1, 5, 6, 7, 8, 2]
    expected = learner.logits(Tensor(np.array([ids], np.int32))).numpy()[0]
    np.testing.assert_allclose(model.logits(ids).numpy(), expected, rtol=1e-4, atol=1e-5)


DENSE = sorted(
    name
    for name, kind in ARCHITECTURES.items()
    if kind.mixes != "always" and not (kind.is_encoder or kind.has_states or kind.has_streams)
)
OTHERS = {  # metadata that some architectures need besides the sizes
    "apertus": {
        f"xielu.{key}": value for key, value in (("alpha_n", 0.3), ("alpha_p", 0.9), ("beta", 0.5), ("eps", -1e-6))
    },
    "mpt": {"mpt.attention.max_alibi_bias": 8.0},
}


@pytest.mark.parametrize("name", [n for n, kind in ARCHITECTURES.items() if kind.mixes == "always"])
def test_experts_are_not_trained(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        Learner({"general.architecture": name}, 9, 5)
    assert f"Learner: {name} models have experts, which are not trained here." in str(caught.value)


def test_recurrent_models_are_not_trained() -> None:
    with pytest.raises(SettingError) as caught:
        Learner({"general.architecture": "mamba"}, 9, 5)
    assert str(caught.value) == (
        "Learner: mamba models have recurrent layers, which are not trained here. Choose an architecture such as llama."
    )


def test_encoders_are_not_trained() -> None:
    with pytest.raises(SettingError) as caught:
        Learner({"general.architecture": "bert"}, 9, 5)
    assert str(caught.value) == (
        "Learner: bert models are encoders, which predict no text. Choose an architecture such as llama."
    )


@pytest.mark.parametrize("name", DENSE)
def test_every_architecture_learns(name: str) -> None:
    """A slope along the gradient is what the gradient says."""
    metadata = {key.replace("llama", name): value for key, value in SIZES.items()} | {"general.architecture": name}
    metadata |= OTHERS.get(name, {})
    learner = Learner(metadata, 9, 5)
    assert list(learner.weights) == list(shapes_of(Config.of(metadata), 9))
    tokens = Tensor(np.array([[1, 5, 6, 7, 8, 2], [1, 7, 8, 5, 5, 2]], np.int32))
    loss = learner.loss(tokens)
    loss.backward()
    grads = {key: weight.grad for key, weight in learner.weights.items()}
    assert all(grad is not None for grad in grads.values())
    squares = sum(
        float(np.square(grad.numpy().astype(np.float64)).sum()) for grad in grads.values() if grad is not None
    )

    def loss_at(step: float) -> float:
        other = Learner(metadata, 9, 5)
        for key, grad in grads.items():
            assert grad is not None
            other.weights[key].assign(other.weights[key].detach() + grad.detach() * (step / squares**0.5)).realize()
        return float(other.loss(tokens).item())

    wide, narrow = ((loss_at(step) - loss_at(-step)) / (2 * step) for step in (2e-3, 1e-3))
    assert (4 * narrow - wide) / 3 == pytest.approx(squares**0.5, rel=1e-2)  # without the error of second order


def test_what_cannot_be_learned_is_a_sentence() -> None:
    learner = Learner(SIZES, 9, 6)
    for texts in ([], [[1], []]):
        with pytest.raises(SettingError) as caught:
            learner.fit(texts, 1)
        assert str(caught.value) == (
            "fit: no texts, or a text without tokens. Give at least one, with its begin token."
        )
    with pytest.raises(SettingError, match=r"^Learner: seed=-1: must be an integer >= 0\.$"):
        Learner(SIZES, 9, 6, seed=-1)
    with pytest.raises(FormatError, match=r"^general.architecture is 'chameleon', which kernmill cannot run yet"):
        Learner(SIZES | {"general.architecture": "chameleon"}, 9, 6)
