"""Functions of functions, as JAX names them: derivatives, `vmap`, gradients of your own, recomputation, loops.

An argument is a tensor, or a dict, list or tuple of tensors; results have its form. They are graphs, so these functions
can be nested, used under `jit`, and followed by `backward()`.
"""

from .custom import checkpoint, custom_gradient
from .derivatives import grad, hessian, jacobian, jvp, value_and_grad, vjp
from .loops import cond, scan, while_loop
from .vectorize import vmap

__all__ = [
    "checkpoint",
    "cond",
    "custom_gradient",
    "grad",
    "hessian",
    "jacobian",
    "jvp",
    "scan",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
