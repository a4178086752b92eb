"""What `jit` is made of: a call is captured, checked by guards, and replayed in one native call.

Arrows point down: captures import `tensor`, `variable` and what these stand on, and nothing of that knows captures
(tests/test_layers.py). Not named jit/, because `kernmill.jit` is the function.
"""

from .jitted import Jit, jit

__all__ = ["Jit", "jit"]
