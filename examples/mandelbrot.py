"""The Mandelbrot set as text: `python examples/mandelbrot.py [--width N] [--rounds N]`.

All rounds are one expression, so the whole picture is one kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kernmill import Tensor

SHADES = " .:-=+*#%@"


def escape_times(width: int, height: int, rounds: int) -> Tensor:
    """How many rounds each point stays near 0, int32 [height, width]."""
    real = Tensor.linspace(-2.2, 0.8, width).reshape(1, width)
    imaginary = Tensor.linspace(-1.2, 1.2, height).reshape(height, 1)
    a, b = Tensor.zeros(height, width), Tensor.zeros(height, width)
    stayed = Tensor.zeros(height, width, dtype="int")
    for _ in range(rounds):
        a, b = a * a - b * b + real, 2 * a * b + imaginary
        a, b = a.clamp(-10, 10), b.clamp(-10, 10)  # points that are far away stay far away
        stayed = stayed + (a * a + b * b < 4).int()
    return stayed


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=78)
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args(given)
    times = escape_times(options.width, options.width // 2, options.rounds).numpy()
    for row in times:
        print("".join(SHADES[int(time) * (len(SHADES) - 1) // options.rounds] for time in row).rstrip())
    print(f"inside: {(times == options.rounds).mean():.3f} of the points")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
