"""The machine: memory, programs, devices. It runs what the compiler produced."""

if __name__ != "kernmill.runtime":
    raise ImportError("import kernmill.runtime, not runtime: the bare name would load a second copy")

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

from . import device as device
from . import failed as failed
from . import lanes as lanes
from . import later as later
from . import local_rank as local_rank
from . import opening as opening
from . import recorder as recorder
from . import watch as watch
from . import weight_arena as weight_arena
from .cpu import elf as elf
from .cpu import host as host
from .cpu import llvm_codegen as llvm_codegen
from .cpu import loader as loader
from .cpu import pool as pool
from .cpu import pool_ir as pool_ir
from .device import *
from .execute import *
from .failed import check_failed as check_failed
from .known import *
from .lanes import open_lanes as open_lanes
from .lanes import settle as settle
from .loops import *
from .memory import allocator as allocator
from .memory.allocator import CachingAllocator as CachingAllocator
from .memory.buffer import *
from .overlap import *
from .pipelined import *
from .plans import families as families
from .plans import graph_key as graph_key
from .plans import plan as plan
from .plans import stored_plan as stored_plan
from .programs import compile_cache as compile_cache
from .programs import schedules as schedules
from .programs.build import *
from .recorder import *
from .replay import *
from .watch import *
from .weight_arena import *

if TYPE_CHECKING:  # loaded by name when first used; announced here for type checkers
    from . import amd_target as amd_target
    from . import chains as chains
    from . import device_rates as device_rates
    from . import kernel_report as kernel_report
    from . import ops_cl as ops_cl
    from . import ops_cuda as ops_cuda
    from . import ops_htp as ops_htp
    from . import ops_llvm as ops_llvm
    from . import ops_null as ops_null
    from . import ops_python as ops_python
    from . import placement_report as placement_report
    from .cpu import arm as arm
    from .cpu import cpu_target as cpu_target
    from .cpu import elf_machines as elf_machines
    from .cpu import llvm_process as llvm_process
    from .cpu import probe as probe
    from .cuda import cuda_driver as cuda_driver
    from .cuda import cuda_target as cuda_target
    from .htp import functions as functions
    from .htp import hexagon as hexagon
    from .htp import linker as linker
    from .htp import resident as resident
    from .htp import session as session
    from .htp import session_memory as session_memory
    from .kernel_report import *
    from .opencl import cl_driver as cl_driver
    from .opencl import cl_memory as cl_memory
    from .opencl import cl_program as cl_program
    from .opencl import cl_trial as cl_trial
    from .pages import *
    from .plans.planning import *
    from .programs import kernel_text as kernel_text
    from .programs import tune_worker as tune_worker
    from .programs.candidates import *
    from .programs.compiling import *
    from .programs.reproduce import *
    from .programs.tune import *

__getattr__, __dir__ = lazy_exports(
    __name__, "pages", "programs.candidates", "programs.compiling", "plans.planning", "kernel_report",
    "programs.reproduce", "programs.tune",
    by_name=(
        "opencl.cl_driver", "opencl.cl_memory", "opencl.cl_program", "opencl.cl_trial",
        "programs.kernel_text", "cpu.arm", "cpu.cpu_target", "cpu.elf_machines", "cpu.llvm_process", "cpu.probe",
        "amd_target", "cuda.cuda_driver", "cuda.cuda_target",
        "htp.functions", "htp.hexagon", "htp.linker", "htp.resident", "htp.session", "htp.session_memory",
        "programs.tune_worker",
    ),
)  # fmt: skip
