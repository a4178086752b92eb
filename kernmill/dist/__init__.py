"""Several computers, or several processes of one, that work on one program: MPI through mpi4py (extra `dist`).

Start a program with `mpirun -n 2 python train.py`. Each copy has a `rank()`; `data_parallel` trains one model on all.
"""

from typing import TYPE_CHECKING

from kernmill.ir import lazy_exports

from .collectives import all_gather, all_reduce, barrier, broadcast, recv, reduce_scatter, send
from .communicator import Communicator, DistError, run_threads
from .job import agree, communicator, end, rank, size, use
from .links import link_to_next

if TYPE_CHECKING:
    from .training import data_parallel, no_sync, share

__all__ = [
    "Communicator", "DistError", "agree", "all_gather", "all_reduce", "barrier", "broadcast", "communicator",
    "data_parallel", "end", "link_to_next", "no_sync", "rank", "recv", "reduce_scatter", "run_threads", "send", "share",
    "size", "use",
]  # fmt: skip

if not TYPE_CHECKING:  # the training needs kernmill.nn, which a model over ranks does not
    __getattr__, __dir__ = lazy_exports(__name__, "training", only=__all__)
