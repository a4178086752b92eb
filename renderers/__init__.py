"""renderers."""

if __name__ != "kernmill.renderers":
    raise ImportError("import kernmill.renderers, not renderers: the bare name would load a second copy")

from .amx import *
from .base import *
from .clike import *
from .llvmir import *
from .mma import *
from .opencl import *
from .opencl_vectors import *
from .python import *
