"""`kernmill explain`: run a program, and show how its graphs were placed on the devices of DEVICE."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kernmill.ir import DeviceTable, GraphPlan, KernmillError
from kernmill.runtime import collecting_placements, device_list, placement_report

from .program import run_program

__all__ = ["run"]


def run(program: str, arguments: Sequence[str], *, most: int) -> int:
    """Run the program and print the placements of up to `most` graphs, the slowest first. Returns 1 if the
    program failed.

    Raises:
        KernmillError: DEVICE names one device; the program cannot be found.
    """
    if len(device_list()) == 1:
        raise KernmillError(
            f"explain: DEVICE={device_list()[0]} names one device, so no placement is needed. Name several in "
            "order of preference: DEVICE=CL,LLVM kernmill explain train.py"
        )
    with collecting_placements() as placed:
        ended_well = run_program("explain", program, arguments, "the graphs that it computed are still shown")
    sys.stdout.flush()
    if not placed:
        print("no graph was computed")
    placed.sort(key=_slowest_first)
    for plan, table in placed[:most]:
        print(f"\ngraph of {len(plan.items)} kernels and copies, result at {_line(plan)}")
        print("\n".join(placement_report.placement_lines(plan, table, is_measured=True)))
    if len(placed) > most:
        print(f"\n{len(placed) - most} more graphs, each faster than these; --graphs {len(placed)} shows them")
    return 0 if ended_well else 1


def _slowest_first(found: tuple[GraphPlan, DeviceTable]) -> float:
    placement = found[0].placement
    return -placement().predicted_ns if placement is not None else 0.0


def _line(plan: GraphPlan) -> str:
    units = plan.placement().units if plan.placement is not None else []
    return (units[-1].origin if units else None) or "an unknown line"
