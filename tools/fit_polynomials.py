"""The numbers of compiler/lower/coefficients.py: `python tools/fit_polynomials.py [--write]` prints or writes it.

Each polynomial is a minimax fit (Remez exchange, 60 digits) of the relative error of the whole function, rounded to the
dtype. The error that is printed is that of the rounded coefficients in exact arithmetic. The words of 2/pi and 1/(2*pi)
for large arguments of sine and cosine are cut from 400 digits.
"""

from __future__ import annotations

import signal
import struct
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

mp.dps = 60
FILE = Path(__file__).resolve().parent.parent / "compiler" / "lower" / "coefficients.py"
Real = Any  # mpmath's numbers carry no types
Function = Callable[[Real], Real]


@dataclass(frozen=True)
class Fit:
    """value(t) = sum of c[i] * t**i on low..high, with the error weighted by weight(t)."""

    name: str
    formula: str
    value: Function
    weight: Function
    low: Real
    high: Real
    terms: tuple[int, int]  # for float32 and float64


def near_zero(value: Function, limit: Sequence[Real]) -> Function:
    """`value`, and its Taylor series close to 0, where the formula cancels."""
    return lambda t: value(t) if abs(t) > mpf("1e-12") else sum(c * t**i for i, c in enumerate(limit))


def _log2_erfc(t: Real) -> Real:
    return mp.log(mp.erfc(1 + t), 2)


def _root_erfc(t: Real) -> Real:
    return mp.sqrt(mp.sqrt(mp.erfc(t + ERF_CENTER)))


STARTS = (-1, 47, 74, 102)  # exponents: the products stay below 2**50.5, the second word's below 2**-4
DIGITS = 21  # the last three are for |x| from 2**1006
LN2 = mp.log(2)
ROOT = mp.sqrt(2)
TWO_ROOT_PI = 2 / mp.sqrt(mp.pi)
QUARTER = mp.pi / 4
ERF_JOINT, ERF_CENTER = mpf("1.13"), mpf("1.25")  # float32: rounding is then even on both sides
ATANH_END = ((ROOT - 1) / (ROOT + 1)) ** 2

FITS = [
    Fit("EXP", "(e**t - 1) / t", near_zero(lambda t: mp.expm1(t) / t, [mpf(1), mpf(1) / 2, mpf(1) / 6]),
        lambda t: abs(t) * mp.exp(-t), -LN2 / 2, LN2 / 2, (6, 11)),
    Fit("EXP2", "(2**t - 1) / t", near_zero(lambda t: mp.expm1(t * LN2) / t, [LN2, LN2**2 / 2, LN2**3 / 6]),
        lambda t: abs(t) * mp.power(2, -t), -mpf(1) / 2, mpf(1) / 2, (6, 11)),
    Fit("EXPM1", "(e**(2*t) - 1 - 2*t) / t**2",
        near_zero(lambda t: (mp.expm1(2 * t) - 2 * t) / t**2, [mpf(2), mpf(4) / 3, mpf(2) / 3]),
        lambda t: t**2 / abs(mp.expm1(2 * t)) if t else mpf(0), -LN2 / 32, LN2 * 15 / 32, (5, 10)),
    Fit("LOG", "(log(1 + t) - t + t**2/2) / t**3",
        near_zero(lambda t: (mp.log1p(t) - t + t**2 / 2) / t**3, [mpf(1) / 3, -mpf(1) / 4, mpf(1) / 5]),
        lambda t: abs(t**3 / mp.log1p(t)) if t else mpf(0), 1 / ROOT - 1, ROOT - 1, (8, 19)),
    Fit("LOG2", "(log2(1 + t) - t/log(2)) / t**2",
        near_zero(lambda t: (mp.log1p(t) - t) / t**2 / LN2, [-1 / LN2 / 2, 1 / LN2 / 3, -1 / LN2 / 4]),
        lambda t: abs(t**2 * LN2 / mp.log1p(t)) if t else mpf(0), 1 / ROOT - 1, ROOT - 1, (9, 20)),
    Fit("ATANH", "(atanh(s)/s - 1 - t/3) / t**2 with t = s*s",
        near_zero(lambda t: (mp.atanh(mp.sqrt(t)) / mp.sqrt(t) - 1 - t / 3) / t**2, [mpf(1) / 5, mpf(1) / 7]),
        lambda t: t**2, mpf(0), ATANH_END, (3, 8)),
    Fit("SIN", "(sin(r)/r - 1) / t with t = r*r",
        near_zero(lambda t: (mp.sin(mp.sqrt(t)) / mp.sqrt(t) - 1) / t, [-mpf(1) / 6, mpf(1) / 120, -mpf(1) / 5040]),
        lambda t: t, mpf(0), QUARTER**2, (3, 7)),
    Fit("COS", "(cos(r) - 1 + t/2) / t**2 with t = r*r",
        near_zero(lambda t: (mp.cos(mp.sqrt(t)) - 1 + t / 2) / t**2, [mpf(1) / 24, -mpf(1) / 720, mpf(1) / 40320]),
        lambda t: t**2, mpf(0), QUARTER**2, (3, 7)),
    *(Fit(name, "erf(x)/x - 1 with t = x*x",
          near_zero(lambda t: mp.erf(mp.sqrt(t)) / mp.sqrt(t) - 1, [TWO_ROOT_PI - 1, -TWO_ROOT_PI / 3]),
          lambda t: mpf(1), mpf(0), high, terms)
      for name, high, terms in (("ERF", ERF_JOINT**2, (7, 0)), ("ERF_LONG", mpf(1), (0, 13)))),
    Fit("ERFC", "erfc(1.25 + t)**(1/4), weighted by the error of its fourth power", _root_erfc,
        lambda t: 4 * _root_erfc(t) ** 3, ERF_JOINT - ERF_CENTER, mpf("3.95") - ERF_CENTER, (8, 0)),
    Fit("ERFC_LONG", "log2(erfc(1 + t)), weighted by erfc", _log2_erfc, lambda t: mp.erfc(1 + t) * LN2,
        mpf(0), mpf("4.95"), (0, 20)),
]  # fmt: skip


def rounded(value: Real, bits: int) -> float:
    """To the nearest float of that width."""
    return float(value) if bits == 64 else float(struct.unpack("f", struct.pack("f", float(value)))[0])


def remez(value: Function, weight: Function, low: Real, high: Real, powers: Sequence[int]) -> list[Real]:
    """Coefficients of the powers whose weighted error is levelled over the interval."""
    n = len(powers)
    points = [low + (high - low) * (1 - mp.cos(mp.pi * (mpf(k) + mpf(1) / 2) / (n + 1))) / 2 for k in range(n + 1)]
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * (mpf(k) + mpf(1) / 2) / (24 * n))) / 2 for k in range(24 * n)]
    table = [(t, value(t), weight(t)) for t in grid]
    coefficients: list[Real] = []
    for _ in range(12):
        rows = [[weight(t) * t**p for p in powers] + [mpf((-1) ** k)] for k, t in enumerate(points)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([weight(t) * value(t) for t in points]))
        coefficients = [solution[i] for i in range(n)]
        errors = [w * (v - sum(c * t**p for c, p in zip(coefficients, powers, strict=True))) for t, v, w in table]
        points, levels = alternate(grid, errors, n + 1)
        if not points or max(levels) < min(levels) * mpf("1.02"):
            break
    return coefficients


def alternate(grid: Sequence[Real], errors: Sequence[Real], count: int) -> tuple[list[Real], list[Real]]:
    """The places of `count` extremes of the error with alternating signs; none when there are fewer."""
    extremes: list[tuple[Real, Real]] = []
    for t, e in zip(grid, errors, strict=True):
        if extremes and (extremes[-1][1] > 0) == (e > 0):
            if abs(e) > abs(extremes[-1][1]):
                extremes[-1] = (t, e)
        else:
            extremes.append((t, e))
    while len(extremes) > count:
        extremes.pop(0 if abs(extremes[0][1]) < abs(extremes[-1][1]) else -1)
    if len(extremes) < count:
        return [], []
    return [t for t, _ in extremes], [abs(e) for _, e in extremes]


def fit(spec: Fit, bits: int) -> tuple[list[float], Real]:
    """Coefficients rounded to the dtype, and the largest weighted error."""
    found = remez(spec.value, spec.weight, spec.low, spec.high, range(spec.terms[bits // 64]))
    done = [rounded(c, bits) for c in found]
    places = [spec.low + (spec.high - spec.low) * mpf(k) / 400 for k in range(401)]

    def error(t: Real) -> Real:
        return abs(spec.weight(t) * (spec.value(t) - sum(mpf(c) * t**i for i, c in enumerate(done))))

    return done, max(error(t) for t in places)


def two_over_pi(start: int) -> tuple[float, float]:
    """2/pi in two words, without the multiples of 4 in its product with any float32 from 2**start."""
    with mp.workdps(400):
        value = 2 / mp.pi
        if start >= 0:  # such a float is a multiple of 2**(start - 23)
            value -= mp.nint(value * mpf(2) ** (start - 25)) / mpf(2) ** (start - 25)
        high = float(value)
        return high, float(value - mpf(high))


def turn_digits() -> list[float]:
    """1/(2*pi) in digits of base 2**53 between -1/2 and 1/2: the sum of digit[i] * 2**(-53*i)."""
    with mp.workdps(400):
        rest, digits = 1 / (2 * mp.pi), []
        for _ in range(DIGITS):
            digit = mp.nint(rest * mpf(2) ** 53) / mpf(2) ** 53
            digits.append(float(digit))
            rest = (rest - digit) * mpf(2) ** 53
    return digits


HEAD = '''"""Coefficients of the polynomials in transcendental.py: written by tools/fit_polynomials.py, not by hand.

Each entry: what the polynomial in t approximates, where, and the largest relative error it leaves in the function.
The first tuple is for float32, the second for float64, lowest power first.
"""

from __future__ import annotations

from typing import Final

__all__ = ["POLYNOMIALS", "TURN_DIGITS", "TWO_OVER_PI"]

POLYNOMIALS: Final[dict[str, dict[int, tuple[float, ...]]]] = {
'''


def text() -> str:
    lines = [HEAD]
    for spec in FITS:
        lines.append(f"    # {spec.formula}, {mp.nstr(spec.low, 4)} <= t <= {mp.nstr(spec.high, 4)}\n")
        lines.append(f'    "{spec.name}": {{\n')
        for bits in (32, 64):
            if spec.terms[bits // 64]:
                found, error = fit(spec, bits)
                lines.append(f"        {bits}: (  # {mp.nstr(error, 2)}\n")
                lines.append(filled(found, " " * 12) + "        ),\n")
        lines.append("    },\n")
        print(spec.name, file=sys.stderr)
    lines.append("}  # fmt: skip\n\n# 2/pi in two words, from which |x|, ")
    lines.append("and without the multiples of 4 in the product with such a float32\n")
    lines.append("TWO_OVER_PI: Final[tuple[tuple[float, float, float], ...]] = (\n")
    for start in STARTS:
        high, low = two_over_pi(start)
        place = repr(0.0 if start < 0 else 2.0**start).replace("e+", "e")  # as ruff writes it
        lines.append(f"    ({place}, {high!r}, {low!r}),\n")
    lines.append(")\n\n# 1/(2*pi) is the sum of TURN_DIGITS[i] * 2**(-53*i)\n")
    lines.append("TURN_DIGITS: Final[tuple[float, ...]] = (\n")
    lines.append(filled(turn_digits(), " " * 4) + ")  # fmt: skip\n")
    return "".join(lines)


def filled(numbers: Sequence[float], indent: str) -> str:
    """As many numbers to a line as fit."""
    lines = textwrap.wrap(", ".join(map(repr, numbers)) + ",", 120 - len(indent))
    return "".join(f"{indent}{line}\n" for line in lines)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `| head` reads no further: end, without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if "--write" in sys.argv:
        FILE.write_text(text(), encoding="utf-8")
    else:
        print(text())
