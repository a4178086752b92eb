"""chatglm: GLM-4 9B, ChatGLM 3."""

from __future__ import annotations

from .llama import Llama

__all__ = ["ChatGLM"]


class ChatGLM(Llama):
    """One product for gate and up; partial rope."""

    fused = (*Llama.fused, ("ffn_up", ("ffn_gate", "ffn_up")))
