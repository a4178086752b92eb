"""hunyuan-moe: Hunyuan A13B."""

from __future__ import annotations

from .hunyuan_dense import HunyuanDense

__all__ = ["HunyuanMoe"]


class HunyuanMoe(HunyuanDense):
    """Hunyuan with experts and a shared one."""

    mixes = "always"
