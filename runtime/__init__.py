"""The machine: memory, programs, devices. It runs what the compiler produced."""

if __name__ != "kernmill.runtime":
    raise ImportError("import kernmill.runtime, not runtime: the bare name would load a second copy")

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

from . import allocator as allocator
from . import compile_cache as compile_cache
from . import device as device
from . import elf as elf
from . import families as families
from . import graph_key as graph_key
from . import host as host
from . import later as later
from . import llvm_codegen as llvm_codegen
from . import loader as loader
from . import opening as opening
from . import plan as plan
from . import pool as pool
from . import pool_ir as pool_ir
from . import schedules as schedules
from . import stored_plan as stored_plan
from . import watch as watch
from . import weight_arena as weight_arena
from .allocator import CachingAllocator as CachingAllocator
from .buffer import *
from .build import *
from .device import *
from .execute import *
from .replay import *
from .watch import *
from .weight_arena import *

if TYPE_CHECKING:  # loaded by name when first used; announced here for type checkers
    from . import chains as chains
    from . import cl_driver as cl_driver
    from . import cl_memory as cl_memory
    from . import cl_program as cl_program
    from . import device_rates as device_rates
    from . import kernel_text as kernel_text
    from . import llvm_process as llvm_process
    from . import ops_cl as ops_cl
    from . import ops_llvm as ops_llvm
    from . import ops_null as ops_null
    from . import ops_python as ops_python
    from . import placement_report as placement_report
    from . import profile as profile
    from . import tune_worker as tune_worker
    from .compiling import *
    from .planning import *
    from .profile import *
    from .tune import *

__getattr__, __dir__ = lazy_exports(__name__, "compiling", "planning", "profile", "tune")
