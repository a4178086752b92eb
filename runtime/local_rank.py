"""Which of the ranks on this machine a process is, by what its launcher sets; MPI itself starts much later.

Several ranks of one machine take its GPUs in turn: `spread`. Tests: tests/runtime/test_local_rank.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from .opening import split_names

__all__ = ["local_rank", "spread"]

# Open MPI; MPICH and Intel MPI; MVAPICH; PALS. Slurm last: what mpirun starts inside of a job inherits its variable
_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID",
)  # fmt: skip


def local_rank() -> int:
    """The number of this process among those of its job on this machine; 0 without a launcher."""
    found = [os.environ[name] for name in _VARIABLES if name in os.environ]
    return int(found[0]) if found and found[0].isdecimal() else 0


def spread(names: str, alike: Callable[[str], Sequence[int]]) -> str:
    """A list of devices for this rank: a name without an index becomes one of those devices.

    `alike`: the indices of a kind that are equally good; of fewer than two the name stays.
    """
    rank = local_rank()
    return ",".join([_own(name, rank, alike) for name in split_names(names)]) if rank and names else names


def _own(name: str, rank: int, alike: Callable[[str], Sequence[int]]) -> str:
    base, question, options = name.partition("?")
    indices = [] if ":" in base else alike(base.upper())
    return f"{base}:{indices[rank % len(indices)]}{question}{options}" if len(indices) > 1 else name
