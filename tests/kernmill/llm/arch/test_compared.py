"""Every architecture has a tiny model, which was compared with llama.cpp; and none of its tensors is left out."""

from __future__ import annotations

import json

import pytest

from kernmill import FormatError, Tensor
from kernmill.llm import Model
from kernmill.llm.arch import ARCHITECTURES
from tests.llama_cpp import RESULTS, limit
from tests.tiny_models import CASES, metadata_of, weights_of


def test_every_architecture_is_compared() -> None:
    """`python -m tests.llama_cpp NAME` writes the results."""
    assert {case.arch for case in CASES.values()} == set(ARCHITECTURES)
    results = json.loads(RESULTS.read_text())
    assert set(results) == set(CASES)
    for name, found in results.items():
        if CASES[name].differs:
            continue
        assert found["greedy"], name
        assert max(found["prompt"], found["step"]) <= limit(CASES[name]), name


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_counts(name: str) -> None:
    """Each tensor of a file is read, and a file without its last norm is no model."""
    case, used = CASES[name], set[str]()
    tensors = {key: Tensor(array) for key, array in weights_of(case).items()}

    def find(key: str) -> Tensor | None:
        used.add(key)
        return tensors.get(key)

    Model.of(metadata_of(case), find, capacity=16, tokenizer=None)
    assert set(tensors) <= used
    kind = ARCHITECTURES[case.arch]
    norm = kind.named(f"{kind.output_norm}.weight")
    if norm in tensors:
        del tensors[norm]
        with pytest.raises(FormatError, match=rf"^the file has no tensor {norm}, which a {case.arch} model needs\.$"):
            Model.of(metadata_of(case), find, capacity=16, tokenizer=None)
