"""Laws: rules that are true of any graph. Rules that depend on a stage or a target belong to compiler/lower/.

`simplify` applies all of them; its results are remembered on the nodes.
"""

from ..rewrite import rewrite
from ..uop import MISSING, UOp
from .divmod import DIVMOD
from .generic import GENERIC
from .integer import INTEGER
from .linear import from_linear, linear, ordered_products, polynomial, span
from .logic import LOGIC

__all__ = ["ALGEBRA", "from_linear", "linear", "ordered_products", "polynomial", "simplify", "span"]

ALGEBRA = GENERIC + LOGIC + INTEGER + DIVMOD


def simplify(root: UOp) -> UOp:
    """Return the value of `root`, simplified by the laws of this folder."""
    return rewrite(root, ALGEBRA, on_nodes=True) if root._simple is MISSING else root._simple or root
