"""`kernmill info --measure`: measure this CPU, and use the figures from now on."""

from __future__ import annotations

import sys
from dataclasses import fields

from kernmill.ir import DeviceError, Machine
from kernmill.runtime import cpu_target, host, probe

__all__ = ["lines_of", "run"]


def run(*, is_forgotten: bool) -> int:
    """Measure this CPU, or forget what was measured; 1 if the machine is busy."""
    cpu = host.this_host()
    family = cpu_target.machine_of(cpu)
    if is_forgotten:
        probe.forget_machine(cpu)
        print(f"the row {family.name} is in force")
        return 0
    try:
        row = probe.measure_machine(cpu)
    except DeviceError as error:
        print(f"kernmill {error}", file=sys.stderr)
        return 1
    print("\n".join(lines_of(family, row)))
    print(f"the row {row.name!r} is in force for this CPU; kernmill info --forget returns to {family.name}")
    return 0


def lines_of(family: Machine, row: Machine) -> list[str]:
    """Return a table: each figure that was measured, and that of the family."""
    found = [(field.name, getattr(family, field.name), getattr(row, field.name)) for field in fields(Machine)]
    found = [one for one in found if isinstance(one[1], float) and one[1] != one[2]]
    for before, after in zip(family.levels, row.levels, strict=True):
        found.append((f"bytes per cycle from {after.name}", before.bytes_per_cycle, after.bytes_per_cycle))
    lines = [f"{'figure':28} {family.name:>12} {'measured':>12}"]
    return [*lines, *[f"{name:28} {before:12g} {after:12g}" for name, before, after in found]]
