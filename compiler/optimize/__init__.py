"""The loop optimizer: the actions that transform the loops of a kernel, and the choice between them."""

from . import proposals as proposals
from .actions import *
from .analysis import *
from .blocks import *
from .choose import *
from .dots import *
from .packing import in_blocks as in_blocks
from .panels import panels_schedule as panels_schedule
from .rows import rows_schedule as rows_schedule
from .schedule import *
from .search import *
from .tiles import *
from .units import *
