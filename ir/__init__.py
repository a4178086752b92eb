"""The IR: what a program is. It knows no pass and no device.

Everything another folder may use is named here; inside this folder imports are relative.
"""

if __name__ != "kernmill.ir":
    raise ImportError("import kernmill.ir, not ir: the bare name would load a second copy")

from . import weak as weak
from .algebra import *
from .device_spec import *
from .digest import *
from .dtype import *
from .errors import *
from .evaluate import *
from .fold import *
from .garbage import *
from .graph import *
from .graph_plan import *
from .lazy_exports import *
from .locks import *
from .ops import *
from .pattern import *
from .rewrite import *
from .settings import *
from .settings import debug as debug
from .shape import *
from .target import *
from .text import *
from .uop import *
from .values import *
from .verify import *
from .weak import *
