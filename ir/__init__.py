"""The IR: what a program is. It knows no pass and no device.

Everything another folder may use is named here; inside this folder imports are relative.
"""

if __name__ != "kernmill.ir":
    raise ImportError("import kernmill.ir, not ir: the bare name would load a second copy")

from .algebra import *
from .device_spec import *
from .dtype import *
from .evaluate import *
from .fold import *
from .graph import *
from .graph_plan import *
from .listing import *
from .machine import *
from .ops import *
from .origin import *
from .pattern import *
from .process import progress as progress
from .process import weak as weak
from .process.cached_property import *
from .process.digest import *
from .process.errors import *
from .process.garbage import *
from .process.lazy_exports import *
from .process.locks import *
from .process.progress import *
from .process.settings import *
from .process.settings import debug as debug
from .process.weak import *
from .rewrite import *
from .shape import *
from .target import *
from .text import *
from .uop import *
from .values import *
from .verify import *
