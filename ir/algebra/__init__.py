"""Laws: rules that are true of any graph. What depends on a stage or a target belongs to compiler/lower/.

`simplify` applies all of them; its results are remembered on the nodes.
"""

from ..rewrite import rewrite_with
from ..uop import UOp
from .divmod import DIVMOD
from .generic import GENERIC
from .integer import INTEGER
from .linear import from_linear, linear
from .logic import LOGIC

__all__ = ["ALGEBRA", "from_linear", "linear", "simplify"]

ALGEBRA = GENERIC + LOGIC + INTEGER + DIVMOD


class _OnNodes(dict[UOp, UOp]):
    """The memory of `simplify`, kept in the nodes themselves so that it dies with them."""

    def __contains__(self, node: object) -> bool:
        return isinstance(node, UOp) and (node._simple is None or isinstance(node._simple, UOp))

    def __getitem__(self, node: UOp) -> UOp:
        simple: UOp | None = node._simple
        return node if simple is None else simple

    def __setitem__(self, node: UOp, simple: UOp) -> None:
        node._simple = None if simple is node else simple


_memory = _OnNodes()


def simplify(root: UOp) -> UOp:
    """The same value, by the laws of this folder."""
    if root in _memory:
        return _memory[root]
    return rewrite_with(root, ALGEBRA, _memory)
