"""The backend that PyTorch's Dynamo calls: forward and backward graphs through AOTAutograd."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernmill.ir import DeviceError

from . import elementwise as elementwise  # these fill the table
from . import movement as movement
from . import networks as networks
from . import products as products
from . import reductions as reductions
from .graph import TorchProgram
from .packing import packed

__all__ = ["backend"]

_log = logging.getLogger("kernmill")
_reported: set[str] = set()

torch._dynamo.config.allow_rnn = True  # otherwise Dynamo runs nn.LSTM and its relatives without any backend


def _compiled(module: Any, inputs: Sequence[Any]) -> TorchProgram:
    """The program of one graph; operators that run in PyTorch are reported once in a process."""
    program = TorchProgram(module.graph)
    new = {name: reason for name, reason in program.eager.items() if name not in _reported}
    _reported.update(new)
    if new:
        shown = "; ".join(f"{name} ({reason})" for name, reason in new.items())
        _log.warning("torch.compile: these operators run in PyTorch, between kernels of kernmill: %s", shown)
    return program


def _partitioned(joint: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> tuple[Any, Any]:
    with torch._functorch.config.patch(recompute_views=True):  # a view that is kept for backward would be a copy
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
    return packed(forward, backward, num_fwd_outputs)


_aot = aot_autograd(
    fw_compiler=_compiled, bw_compiler=_compiled, decompositions=core_aten_decompositions(), partition_fn=_partitioned
)


@contextmanager
def _without_mkldnn() -> Generator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def backend(module: Any, inputs: Sequence[Any], **_: Any) -> Any:
    """Compile a graph of Dynamo's for tensors of one CPU.

    Raises:
        DeviceError: tensors on several devices, or not on the CPU.
    """
    every = [*inputs, *module.parameters(), *module.buffers()]
    devices = sorted({str(x.device) for x in every if isinstance(x, torch.Tensor)})
    if devices not in ([], ["cpu"]):
        raise DeviceError(
            f"torch.compile: the tensors are on {', '.join(devices)}, and the backend kernmill takes tensors on the "
            "CPU. Move model and inputs with .to('cpu'); DEVICE says where kernmill computes."
        )
    # attention and recurrent layers are traced as small operators
    with sdpa_kernel([SDPBackend.MATH]), _without_mkldnn():
        return _aot(module, inputs)
