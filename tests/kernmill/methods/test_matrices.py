from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Tensor

from ..against import close, values, with_torch

ANY: Any = Tensor


def test_trace_kron_cross_and_power_are_numpys() -> None:
    a, b = values(4, 4, seed=1), values(2, 3, seed=2)
    close(Tensor(a).trace(), np.trace(a))
    close(Tensor(a).trace(1), np.trace(a, 1))
    close(Tensor(values(3, 4, 2)).trace(), np.trace(values(3, 4, 2)))
    for left, right in ((a, b), (b, a[0]), (a[0], b), (values(2, 2, 2), b)):
        close(Tensor(left).kron(Tensor(right)), np.kron(left, right))
    u, v = values(5, 3, seed=3), values(5, 3, seed=4)
    close(Tensor(u).cross(Tensor(v)), np.cross(u, v))
    close(Tensor(u.T).cross(Tensor(v.T), axis=0), np.cross(u.T, v.T, axis=0))
    for n in range(6):
        close(Tensor(a).matrix_power(n), np.linalg.matrix_power(a, n), 1e-5, 1e-4)
    ints = np.array([[1, 1], [1, 0]])
    assert Tensor(ints).matrix_power(10).tolist() == np.linalg.matrix_power(ints, 10).tolist()
    assert Tensor(ints).trace().dtype.name == "int64"


def test_gradients_are_torchs() -> None:
    torch: Any = pytest.importorskip("torch")
    a, b = values(3, 3, seed=1), values(2, 2, seed=2)
    u, v = values(4, 3, seed=3), values(4, 3, seed=4)
    with_torch(lambda x: x.trace(), torch.trace, [a])
    with_torch(lambda x, y: x.kron(y), torch.kron, [a, b])
    with_torch(lambda x, y: x.cross(y), torch.linalg.cross, [u, v])
    with_torch(lambda x: x.matrix_power(3), lambda x: torch.matrix_power(x, 3), [a], 2e-5)


REARRANGED = [
    ("a b -> b a", (2, 3), {}), ("a b -> (a b)", (2, 3), {}), ("(a b) -> b a", (6,), {"a": 2}),
    ("b (h w) c -> b c h w", (2, 6, 3), {"h": 2}), ("... c -> c ...", (2, 3, 4), {}),
    ("a 1 b -> b a 1 1", (2, 1, 3), {}),
    ("b h w c -> b (c h w)", (2, 2, 3, 2), {}), ("(a b) ... -> a (b ...)", (4, 3, 2), {"b": 2}),
    ("... -> ...", (2, 2), {}),
]  # fmt: skip
WITHOUT_DOTS = {
    "... c -> c ...": "a b c -> c a b",
    "(a b) ... -> a (b ...)": "(a b) c d -> a (b c d)",
    "... -> ...": "a b -> a b",
}


def reference(pattern: str, x: np.ndarray[Any, Any], sizes: dict[str, int]) -> np.ndarray[Any, Any]:
    """The meaning of a pattern, element by element, for patterns without `...`."""
    left, right = (side.replace("(", " ( ").replace(")", " ) ").split() for side in pattern.split("->"))
    names = [n for n in left if n not in "()1"]

    def grouped(tokens: list[str]) -> list[list[str]]:
        groups: list[list[str]] = []
        inside = False
        for token in tokens:
            if token in "()":
                inside = token == "("
                groups += [[]] if inside else []
            elif inside:
                groups[-1].append(token)
            else:
                groups.append([] if token == "1" else [token])
        return groups

    known = dict(sizes)
    for group, size in zip(grouped(left), x.shape, strict=True):
        given = int(np.prod([known[n] for n in group if n in known]))
        known |= {n: size // given for n in group if n not in known}
    flat = x.reshape([known[n] for n in names])
    order = [n for group in grouped(right) for n in group]
    moved = flat.transpose([names.index(n) for n in order])
    return moved.reshape([int(np.prod([known[n] for n in group])) for group in grouped(right)])


@pytest.mark.parametrize(("pattern", "shape", "sizes"), REARRANGED, ids=[p for p, _, _ in REARRANGED])
def test_rearrange(pattern: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    plain = {
        "... c -> c ...": "a b c -> c a b",
        "(a b) ... -> a (b ...)": "(a b) c d -> a (b c d)",
        "... -> ...": "a b -> a b",
    }
    want = reference(plain.get(pattern, pattern), x, sizes)
    got = ANY(x).rearrange(pattern, **sizes).numpy()
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
