"""A spectrogram by Fourier transforms: `python examples/spectrogram.py [--seconds N]`.

A tone rises from 200 to 1,800 Hz. Overlapping windows of it are transformed in one kernel, and shown as text: time from
left to right, frequency upwards.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from kernmill import Tensor, fft, jit

RATE, WINDOW, STEP = 8000, 512, 128
SHADES = " .:-=+*#%@"


def tone(seconds: float) -> Tensor:
    time = Tensor.arange(int(RATE * seconds)).float() / RATE
    turns = 200.0 * time + 800.0 / seconds * time * time
    return (2 * math.pi * turns).sin() + 0.05 * Tensor.randn(*time.shape)


@jit
def spectrogram(sound: Tensor) -> tuple[Tensor, Tensor]:
    """The power of each frequency in each window, and the part of the energy that the transform loses."""
    hann = 0.5 - 0.5 * (2 * math.pi / WINDOW * Tensor.arange(WINDOW).float()).cos()
    frames = sound.unfold(0, WINDOW, STEP) * hann
    spectrum = fft.rfft(frames, norm="ortho")
    power = spectrum.abs().square()
    twice = 2 * power.sum() - power[:, 0].sum() - power[:, -1].sum()  # the conjugates are left out
    return power, (twice / frames.square().sum() - 1).abs()


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(given)
    power, loss = spectrogram(tone(options.seconds))
    levels = (power + 1e-9).log10()
    bands = levels[:, :128].reshape(levels.shape[0], 16, 8).max(2)
    shade = ((bands - bands.min()) / (bands.max() - bands.min()) * (len(SHADES) - 1)).round().int()
    for row in shade.T.tolist()[::-1]:
        print("".join(SHADES[level] for level in row[:: max(1, len(row) // 60)]))
    loudest = fft.rfftfreq(WINDOW, 1 / RATE)[power.argmax(1)]
    print(f"loudest: {loudest[0].item():.0f} Hz at the start, {loudest[-1].item():.0f} Hz at the end; "
          f"energy lost {100 * loss.item():.3f} %")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
