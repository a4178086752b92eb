"""The work: a tensor graph in, kernels and linear UOps out. It is given a Target and never sees a device or a
renderer."""

if __name__ != "kernmill.compiler":
    raise ImportError("import kernmill.compiler, not compiler: the bare name would load a second copy")

from .choose_devices import *
from .distribute_work_items import *
from .estimate import *
from .kernel import *
from .linearize import *
from .locality import *
from .memory_plan import *
from .merge_kernels import *
from .merge_loops import *
from .min_cut import *
from .optimize import *
from .partition_loops import *
from .peel_loops import *
from .pipeline import *
from .place import *
from .placement_units import *
from .plan_kernels import *
from .read_parts import *
from .reduce_loops import *
from .split_loops import *
from .trim_loops import *
