"""What the renderers' tests share: kernels of which each language has a golden file, and questions about a text."""

from __future__ import annotations

from collections.abc import Callable

from kernmill.compiler import parse_schedule
from kernmill.ir import Ops, Target, UOp, elementwise, permute
from kernmill.renderers import Renderer
from tests.compiler.kernels import data, lowered, matmul, only, softmax, total

X = data(0, 6, 32)

GOLDEN: dict[str, tuple[UOp, str]] = {
    "add": (elementwise(Ops.ADD, data(0, 4096), data(1, 4096)), "vectorize i0 16; unroll i0 2; thread i0"),
    "row_sum": (total(data(0, 8, 256), 1), "vectorize k0 16; rfactor k0 2; thread i0"),
    "matmul_tile": (matmul(data(0, 16, 32), data(1, 32, 64)), "vectorize i1 16; unroll i0 2; thread i0"),
    "masked_tail": (data(0, 37) * 2.0, "vectorize i0 16"),
    "softmax_row": (softmax(data(0, 4, 64)), "vectorize k0 16; vectorize k1 16; vectorize i1 16; thread i0"),
    "scalars": (permute(X, (1, 0)) + 1.0, ""),
}


def render_with(
    language: Callable[[Target], Renderer], root: UOp, schedule: str | None, target: Target, name: str = "k"
) -> str:
    """The text of the only kernel of a graph, by a schedule or by the heuristic's."""
    uops = lowered(only(root), target, None if schedule is None else parse_schedule(schedule), is_checked=True)
    return language(target).render(name, uops)


def has(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, f"{part!r} is not in\n{text}"


def lacks(text: str, *parts: str) -> None:
    for part in parts:
        assert part not in text, f"{part!r} is in\n{text}"
