"""`kernmill info --links`: what placement knows of the devices of DEVICE, and of copies between them."""

from __future__ import annotations

from kernmill.ir import DeviceSpec, show_ns
from kernmill.runtime import device_rates

__all__ = ["run"]


def run() -> int:
    """Print the measured rates of each device and each link."""
    table = device_rates.device_table((), ())
    for spec in table.specs:
        print("\n  ".join([spec.name, *_rates_of(spec)]))
    for (source, target), link in table.links.items():
        print(f"{source} -> {target}: {show_ns(link.latency_ns)}, {link.bytes_per_ns:g} GB/s")
    return 0


def _rates_of(spec: DeviceSpec) -> list[str]:
    products = f"products {spec.products_per_ns:g}, {spec.long_products_per_ns:g} with long rows"
    columns = f"columns {spec.column_bytes_per_ns:g}, {spec.long_column_bytes_per_ns:g} of long rows"
    beyond = f", beyond {spec.near_bytes / 2**20:.0f} MiB {spec.far_bytes_per_ns:g}" if spec.near_bytes < 1e18 else ""
    return [
        f"launch {show_ns(spec.launch_ns)}, behind another one {show_ns(spec.in_batch_ns)}",
        f"operations/ns: additions {spec.ops_per_ns:g}, functions {spec.functions_per_ns:g}, "
        f"sums {spec.sums_per_ns:g}, {products}",
        f"GB/s: {spec.bytes_per_ns:g}{beyond}, transposed {spec.crossed_bytes_per_ns:g}, {columns}, "
        f"read again {spec.again_bytes_per_ns:g}",
    ]
