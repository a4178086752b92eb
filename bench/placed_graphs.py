"""Thirty graphs: the time that placement predicts against the measured one, for each device.

    python -m bench.placed_graphs                    # LLVM, CL and the far device of the tests
    python -m bench.placed_graphs --device LLVM mlp* # one device, and graphs by name
    python -m bench.placed_graphs --held-out         # graphs that nobody looked at while the prediction was changed
    THREADS=1 python -m bench.placed_graphs --clock cpu   # where other programs run: CPU time of all processes

The list was committed before the cost function was fitted to anything. Each graph is pinned to one device, planned as
any graph over a list is, and its plan is run on other buffers, as `kernmill explain` does it. The aim: 80 of 100 graphs
within 25 % of the prediction.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kernmill import Context, Tensor
from kernmill.ir import GraphPlan
from kernmill.runtime import collecting_placements, device, device_names, device_rates, get_device, placement_report

__all__ = ["GRAPHS", "HELD_OUT", "Prediction", "cpu_clock", "main", "predictions"]

WITHIN = 1.25
Shapes = tuple[tuple[int, ...], ...]
Graph = tuple[Callable[..., Tensor], Shapes]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of several heads."""
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def layer_norm(x: Tensor, w: Tensor) -> Tensor:
    """Mean and variance of rows."""
    centered = x - x.mean(-1, keepdim=True)
    return centered * ((centered * centered).mean(-1, keepdim=True) + 1e-5).rsqrt() * w


def block(x: Tensor, a: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A product, a normalization and an MLP, each added to the residual."""
    y = x + x @ a
    z = y * ((y * y).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return y + (z @ up).silu() @ down


def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Mean of the squares of a product's error."""
    return ((x @ w - y) ** 2).mean()


def gradient(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """The gradient of `loss`, by hand."""
    return x.transpose(0, 1) @ (x @ w - y) * (2.0 / 128)


GRAPHS: dict[str, Graph] = {
    "add_1k": (lambda a, b: a + b, ((1024,), (1024,))),
    "add_1m": (lambda a, b: a + b, ((1 << 20,), (1 << 20,))),
    "add_4m": (lambda a, b: a + b, ((1 << 22,), (1 << 22,))),
    "polynomial_1m": (lambda a: ((a * 0.5 + 1.0) * a + 2.0) * a + 3.0, ((1 << 20,),)),
    "exp_1m": (lambda a: a.exp(), ((1 << 20,),)),
    "gelu_1m": (lambda a: a.gelu(), ((1 << 20,),)),
    "swiglu": (lambda a, b: a.silu() * b, ((256, 2048), (256, 2048))),
    "sum_all": (lambda a: a.sum(), ((1 << 20,),)),
    "sum_rows": (lambda a: a.sum(1), ((1024, 1024),)),
    "sum_columns": (lambda a: a.sum(0), ((1024, 1024),)),
    "maximum_rows": (lambda a: a.max(1), ((2048, 512),)),
    "softmax": (lambda a: a.softmax(-1), ((512, 1024),)),
    "layer_norm": (layer_norm, ((512, 1024), (1024,))),
    "rms_norm": (lambda a, w: a * ((a * a).mean(-1, keepdim=True) + 1e-5).rsqrt() * w, ((64, 4096), (4096,))),
    "transpose": (lambda a: a.transpose(0, 1).contiguous(), ((1024, 1024),)),
    "bias_relu": (lambda a, b: (a + b).relu(), ((1024, 1024), (1024,))),
    "matmul_64": (lambda a, b: a @ b, ((64, 64), (64, 64))),
    "matmul_128": (lambda a, b: a @ b, ((128, 128), (128, 128))),
    "matmul_512": (lambda a, b: a @ b, ((512, 512), (512, 512))),
    "matmul_wide": (lambda a, b: a @ b, ((32, 1024), (1024, 1024))),
    "matvec_1024": (lambda a, b: a @ b, ((1, 1024), (1024, 1024))),
    "matvec_2048": (lambda a, b: a @ b, ((1, 2048), (2048, 2048))),
    "matmul_batched": (lambda a, b: a @ b, ((16, 64, 64), (16, 64, 64))),
    "mlp": (lambda x, a, b: (x @ a).relu() @ b, ((64, 256), (256, 512), (512, 256))),
    "mlp_deep": (lambda x, a, b, c: ((x @ a).relu() @ b).relu() @ c, ((32, 128), (128, 256), (256, 256), (256, 64))),
    "attention": (attention, ((8, 64, 64), (8, 64, 64), (8, 64, 64))),
    "block": (block, ((16, 256), (256, 256), (256, 1024), (1024, 256))),
    "block_token": (block, ((1, 512), (512, 512), (512, 2048), (2048, 512))),
    "loss": (loss, ((128, 512), (512, 128), (128, 128))),
    "gradient": (gradient, ((128, 512), (512, 128), (128, 128))),
}


HELD_OUT: dict[str, Graph] = {
    "multiply_2m": (lambda a, b: a * b, ((1 << 21,), (1 << 21,))),
    "square_root": (lambda a: (a * a + 1.0).sqrt(), ((1 << 19,),)),
    "logarithm": (lambda a: (a * a + 1.0).log(), ((1 << 19,),)),
    "tanh": (lambda a: a.tanh(), ((512, 1024),)),
    "clip": (lambda a: a.maximum(-1.0).minimum(1.0), ((1 << 20,),)),
    "quotient": (lambda a, b: a / (b * b + 1.0), ((1 << 18,), (1 << 18,))),
    "sum_middle": (lambda a: a.sum(1), ((64, 128, 64),)),
    "mean_rows": (lambda a: a.mean(1), ((4096, 64),)),
    "maximum_columns": (lambda a: a.max(0), ((512, 512),)),
    "log_sum_exp": (lambda a: (a - a.max(-1, keepdim=True)).exp().sum(-1).log(), ((256, 512),)),
    "softmax_small": (lambda a: a.softmax(-1), ((64, 64),)),
    "log_softmax": (lambda a: a.log_softmax(-1), ((128, 2048),)),
    "rms_norm_token": (lambda a, w: a * ((a * a).mean(-1, keepdim=True) + 1e-5).rsqrt() * w, ((1, 2048), (2048,))),
    "add_transposed": (lambda a, b: a + b.transpose(0, 1), ((512, 512), (512, 512))),
    "heads": (lambda a: a.transpose(1, 2).contiguous(), ((4, 64, 16, 64),)),
    "matmul_256": (lambda a, b: a @ b, ((256, 256), (256, 256))),
    "matmul_tall": (lambda a, b: a @ b, ((2048, 64), (64, 64))),
    "matmul_transposed": (lambda a, b: a @ b.transpose(0, 1), ((128, 512), (256, 512))),
    "matvec_long": (lambda a, b: a @ b, ((1, 4096), (4096, 512))),
    "linear_relu": (lambda x, w, b: (x @ w + b).relu(), ((128, 512), (512, 512), (512,))),
    "outer": (lambda a, b: a.reshape(-1, 1) * b, ((1024,), (1024,))),
    "convolution": (lambda x, w: x.conv2d(w), ((1, 8, 34, 34), (16, 8, 3, 3))),
    "distances": (lambda a, b: ((a.reshape(64, 1, 32) - b) ** 2).sum(-1), ((64, 32), (128, 32))),
    "two_layers": (lambda x, a, b: ((x @ a).gelu() @ b).softmax(-1), ((8, 256), (256, 512), (512, 64))),
}


class Prediction(NamedTuple):
    """Predicted and measured nanoseconds of a graph on a device."""

    graph: str
    device: str
    predicted_ns: float
    measured_ns: float

    @property
    def ratio(self) -> float:
        """Predicted by measured."""
        return self.predicted_ns / self.measured_ns

    @property
    def is_right(self) -> bool:
        """True if both differ by a quarter at most."""
        return 1 / WITHIN <= self.ratio <= WITHIN


def predictions(
    name: str, graphs: Mapping[str, Graph], rounds: int = 3, scale: float = 1.0
) -> list[Prediction]:  # fmt: skip
    """Predict and measure graphs on a device; of several rounds over all of them the median of what was measured."""
    other = "PYTHON" if name == "LLVM" else "LLVM"
    plans: list[tuple[str, GraphPlan, list[placement_report.PlacementSplit]]] = []
    for graph, (function, shapes) in graphs.items():
        rng = np.random.default_rng(0)
        data = [rng.standard_normal(shape).astype(np.float32) * np.float32(scale) for shape in shapes]
        with Context(DEVICE=f"{name},{other}", PIN=f".={name}", CACHE="0"), collecting_placements() as placed:
            given = [Tensor(array, device=name).realize() for array in data]
            placed.clear()
            function(*given).realize()
        plan, table = placed[-1]
        splits = placement_report.splits_of(plan, table)
        assert {split.device for split in splits} == {name}
        plans.append((graph, plan, splits))
    times = [[sum(placement_report.measure(plan, splits)) for _, plan, splits in plans] for _ in range(rounds)]
    return [
        Prediction(graph, name, sum(s.predicted_ns + s.copies_ns for s in splits), statistics.median(measured))
        for (graph, _, splits), measured in zip(plans, zip(*times, strict=True), strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each graph and device, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", help="names or patterns; all without any")
    parser.add_argument("--device", default="LLVM,CL,FAR", help="the devices, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held-out", action="store_true", help="the other list")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args(arguments)
    if given.clock == "wall":
        _print_all(given)
        return
    with cpu_clock():
        _print_all(given)


@contextmanager
def cpu_clock() -> Iterator[None]:
    """Rates and times are CPU time of this process and of far devices, for a busy machine (Linux)."""
    with tempfile.TemporaryDirectory() as folder, Context(CACHE_DIR=folder):  # no rates of the other clock
        device_rates.timer = _cpu_ns
        try:
            yield
        finally:
            device_rates.timer = time.perf_counter_ns


def _cpu_ns() -> int:
    total = time.process_time_ns()
    for opened in list(device._open.values()):
        if (process := getattr(opened, "process", None)) is not None:
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[0])
    return total


def _print_all(given: argparse.Namespace) -> None:
    listed = HELD_OUT if given.held_out else GRAPHS
    chosen = {n: g for n, g in listed.items() if not given.graphs or any(fnmatch.fnmatch(n, p) for p in given.graphs)}
    known = device_names()
    device.device_names = lambda: {**known, "FAR": "tests.far_device:FarDevice"}
    for name in given.device.split(","):
        opened = get_device(f"{name}?mib=512" if name == "FAR" else name).name
        found = predictions(opened, chosen, given.rounds)
        for one in found:
            mark = "" if one.is_right else "  <-"
            times = f"predicted {one.predicted_ns / 1e3:9.1f} us  measured {one.measured_ns / 1e3:9.1f} us"
            print(f"{name:5} {one.graph:15} {times}  {one.ratio:5.2f}{mark}")
        print(f"{name}: {sum(one.is_right for one in found)} of {len(found)} within a quarter")


if __name__ == "__main__":
    main()
