"""Listings of UOps say what `print_uops` prints, and repeat nothing."""

from __future__ import annotations

from kernmill import Tensor
from kernmill.ir import Listings, Ops, UOp, const, dtypes, has_origin, parse_uops, print_uops


def printed(root: UOp | list[UOp]) -> str:
    """Return the printed text, but no origins of nodes that many kernels share."""
    nodes = root.toposort() if isinstance(root, UOp) else root
    lines = print_uops(root).splitlines(keepends=True)
    assert len(lines) == len(nodes)
    return "".join(
        line if has_origin(node) else line.partition("  # ")[0].rstrip("\n") + "\n"
        for line, node in zip(lines, nodes, strict=True)
    )


def test_a_listing_is_the_printed_text() -> None:
    found = Listings()
    x = Tensor.ones(4, 8)
    graphs = [(x @ x.T).softmax(1).uop, (x.cumsum(0) + 1).sum().uop, x.reshape(8, 4).pad((1, 2)).uop]
    listings = [found.add(graph) for graph in graphs]
    again = Listings(found.heads, found.origins)
    for graph, listing in zip(graphs, listings, strict=True):
        assert found.text(listing) == again.text(listing) == printed(graph)


def test_nodes_in_args_and_signs_of_zero() -> None:
    text = (
        '%0 = VARIABLE index () ("listed", 1, 9)  # a.py:1\n%1 = PARAM float32 () (0, %0)\n%2 = CONST float32 () 0.0\n'
        '%3 = CONST float32 () -0.0  # a.py:2 "%1"\n%4 = ADD float32 (%2, %3)\n'
    )
    found = Listings()
    root = parse_uops(text)
    assert found.text(found.add(root)) == printed(root)
    nodes = [*parse_uops(text).toposort()]
    assert found.text(found.add(nodes)) == printed(nodes)
    lone = UOp(Ops.ADD, dtypes.float32, (const(dtypes.float32, 1.0), const(dtypes.float32, 2.0)))
    assert found.text(found.add([lone])) == printed([lone])  # its sources are not in the list


def test_what_moves_has_the_same_text() -> None:
    x, y = (const(dtypes.float32, value) for value in (1.0, 2.0))
    both = UOp(Ops.MUL, dtypes.float32, (x, y))
    found = Listings()
    before = [line.split(" ") for line in found.add([x, y, both]).split("\n")]
    after = [line.split(" ") for line in found.add([y, x, y, x, y, both][1:]).split("\n")]
    assert [line[-1] for line in before] == [line[-1] for line in after]
    assert len(found.heads) == 3
