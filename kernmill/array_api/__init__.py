"""The Python array API standard, version 2024.12: `x.__array_namespace__()` of a Tensor and of a ComplexTensor.

Arrays are Tensors, complex ones ComplexTensors. docs/how-to/array-api.md lists what differs from the standard.
"""

from __future__ import annotations

from . import fft as fft
from . import linalg as linalg
from .creation import *
from .dtypes import *
from .dtypes import __array_namespace_info__ as __array_namespace_info__
from .elementwise import *
from .linalg import matmul, matrix_transpose, tensordot, vecdot
from .manipulation import *
from .reductions import *
from .searching import *

__array_api_version__ = "2024.12"

__all__ = ["fft", "linalg", "matmul", "matrix_transpose", "tensordot", "vecdot"]
