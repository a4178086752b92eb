"""glm4: GLM-4 0414."""

from __future__ import annotations

from .chatglm import ChatGLM

__all__ = ["Glm4"]


class Glm4(ChatGLM):
    """ChatGLM with norms before and after each part."""

    needs_besides = ("post_attention_norm.weight", "post_ffw_norm.weight")
