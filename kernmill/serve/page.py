"""The page at /: one file without outside resources, and the policy that keeps it so."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

__all__ = ["html", "policy"]


@cache
def html() -> str:
    """The page."""
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


@cache
def policy() -> str:
    """Content-Security-Policy: only the page's own script and style, and requests to its own server."""
    found = {
        name: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(rf"<{name}>(.*?)</{name}>", html(), re.DOTALL)
        )
        for name in ("script", "style")
    }
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {found['script']}; style-src {found['style']}"
    )
