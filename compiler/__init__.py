"""The work: a tensor graph in, kernels and linear UOps out. It is given a Target and never sees a device or a
renderer."""

if __name__ != "kernmill.compiler":
    raise ImportError("import kernmill.compiler, not compiler: the bare name would load a second copy")

from .graph.bases import *
from .graph.build_kernels import *
from .graph.choose_devices import *
from .graph.choose_in_place import *
from .graph.choose_stored import *
from .graph.fuse import *
from .graph.keep_copies import *
from .graph.merge_kernels import *
from .graph.min_cut import *
from .graph.order_kernels import *
from .graph.pass_slices import *
from .graph.pipeline import *
from .graph.place import *
from .graph.place_by_passes import *
from .graph.placement_units import *
from .graph.plan_memory import *
from .graph.separate_constants import *
from .graph.why_fused import *
from .kernel.cost import *
from .kernel.distribute_work_items import *
from .kernel.estimate import *
from .kernel.facts import *
from .kernel.linearize import *
from .kernel.locality import *
from .kernel.merge_loops import *
from .kernel.partition_loops import *
from .kernel.peel_loops import *
from .kernel.place_barriers import *
from .kernel.planned_work import *
from .kernel.reduce_loops import *
from .kernel.split_loops import *
from .kernel.trim_loops import *
from .kernel.work import *
from .optimize import *
from .pipeline import *
from .routines import *
