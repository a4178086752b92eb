"""docs/results.md: one section for each file of bench/results, in the order of their names, the newest first.

A file holds what a benchmark command keeps with `--json`: the machine, the date, the commit and every sample. Runs from
before samples were kept have the finished table instead: `columns` and `rows`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import __main__ as rows
from bench import llama, tuned
from bench.machine import machine_line
from bench.programs import __main__ as programs
from bench.table import as_row, markdown

__all__ = ["results"]

_RATIO = re.compile(r"\*\*([\d.]+)\*\*")
_PAIR = ": time, x"  # ends the name of a column with a peer's time and its ratio to ours
Content = dict[str, Any]


def _plain(content: Content) -> str:
    """A finished table. Of a peer's time and ratio the page shows the ratio; the file has both."""
    columns = [name.replace(_PAIR, ", x") for name in content["columns"]]
    pairs = [name.endswith(_PAIR) for name in content["columns"]]
    lines = [as_row(columns), as_row(["---"] * len(columns))]
    for row in content["rows"]:
        cells = ["".join(_RATIO.findall(cell)) if is_pair else cell for cell, is_pair in zip(row, pairs, strict=True)]
        lines.append(as_row(cells))
    return f"{content['about']}\n\n{machine_line(content['machine'])}.\n\n" + "\n".join(lines) + "\n"


def _llama(content: Content) -> str:
    lines = [llama.Line(**line) for line in content["lines"]]
    return llama.markdown(content["machine"], llama.shape_of([line.mix for line in lines]), lines)


KINDS: dict[str, tuple[str, Callable[[Content], str]]] = {  # the first of these keys that a file has decides
    "columns": ("", _plain),
    "lines": ("python -m bench.llama", _llama),
    "kernels": ("python -m bench.tuned",
                lambda content: tuned.markdown(content["machine"], [tuned.Line(**one) for one in content["kernels"]])),
    "facts": ("python -m bench.programs", lambda content: programs.markdown(content["facts"], content["rows"])),
    "rows": ("python -m bench", lambda content: markdown(*rows.as_kept(content))),
}  # fmt: skip


def _section(path: Path) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    command, show = KINDS[next(key for key in KINDS if key in content)]
    facts = content.get("facts") or content["machine"]
    title = content.get("title") or f"`{command}`"
    where = f"`{content.get('command') or command}`, {facts['when']}, commit {facts['commit']}, file `{path.name}`."
    return f"## {title}: {path.stem}\n\n{where}\n\n{show(content)}"


def results(folder: Path) -> str:
    """Everything behind the heading."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.name, reverse=True)
    intro = "How these are measured and how to read them: [bench/README](../bench/README.md).\n"
    return "\n".join([intro, *map(_section, files)])
