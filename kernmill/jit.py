"""jit: capture what a function launches, then replay it in one native call.

The first call runs the function plainly, so that state which is made when first needed comes into being. After that each new
combination of argument structure, shapes, dtypes, devices, plain argument values and settings is captured once and replayed from
then on. Python code does not run in a replay; what it depended on is checked (`guards.py`), and a change captures anew.

How a replay keeps the meaning of plain execution:

- Every buffer of the recording that was there before is a *source*: it is looked up each time through the tensor that held it.
- What results, gradients and other new tensors are put into is *fresh*: memory that nobody else sees, each time.
- A tensor that was given new values is given them again: in place where the recording wrote in place and no other tensor
  and no NumPy view sees that memory (else it moves to a copy first), otherwise by taking over a fresh buffer.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any, Generic, ParamSpec, TypeVar

from kernmill.ir import GradientError, KernmillError, Ops, UOp, reshape, setting
from kernmill.runtime import (
    STALE,
    Buffer,
    Recording,
    Replay,
    allocate_buffer,
    buffer_node,
    copy_between,
    current_recording,
    recording,
)

from .guards import Guard, Walk
from .lazy import Lazy, alive, is_grad_enabled, is_training
from .nest import Leaf, assign_at, rebuild, take_apart
from .random import generators
from .tensor import Tensor, register_leaf, stored

__all__ = ["CacheInfo", "Jit", "Memory", "jit"]
