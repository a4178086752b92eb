"""NVIDIA's GPUs: aligned vectors."""

from __future__ import annotations

from kernmill.renderers import PTXRenderer
from kernmill.runtime import cuda_target
from tests.compiler.kernels import data, lowered, only


def test_vectors_promise_their_alignment() -> None:
    target = cuda_target.cuda_target(90)
    text = PTXRenderer(target).render("k", lowered(only(data(0, 1 << 16) + 1.0), target))
    assert "load <4 x float>" in text
    assert "align 16" in text
