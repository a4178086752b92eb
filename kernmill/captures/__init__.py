"""The parts of `jit`: a call is captured, checked by guards, and replayed in one native call.

Arrows point down: captures import `tensor`, `variable` and what these use, and nothing there knows captures
(tests/test_layers.py). Not named jit/, because `kernmill.jit` is the function.
"""

from .jitted import Jit, jit
from .staging import Staging

__all__ = ["Jit", "Staging", "jit"]
