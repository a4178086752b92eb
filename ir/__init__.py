"""The IR: what a program is. It knows no pass and no device.

Everything another folder may use is named here; inside this folder imports are relative.
"""

if __name__ != "kernmill.ir":
    raise ImportError("import kernmill.ir, not ir: the bare name would load a second copy")

from .dtype import *
from .errors import *
from .settings import *
from .settings import debug as debug
from .algebra import *
from .evaluate import *
from .fold import *
from .ops import *
from .pattern import *
from .rewrite import *
from .scalar import *
from .shape import *
from .uop import *
from .graph import *
from .target import *
from .text import *
from .verify import *
