"""The documents say what is true: doctests run, generated pages are fresh, links lead somewhere."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernmill", "compiler", "ir", "renderers", "runtime")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def real_name(source: Path) -> str:
    """ir/algebra/float.py is the module kernmill.ir.algebra.float."""
    parts = list(source.relative_to(ROOT).with_suffix("").parts)
    parts = parts if parts[0] == "kernmill" else ["kernmill", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if path.stem != "__main__"]


@pytest.mark.parametrize("name", [real_name(path) for path in SOURCES])
def test_doctests_of_a_module(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "kernmill":
            raise
        pytest.skip(f"{missing.name} is not installed")
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_of_a_page(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_generated_pages_are_fresh() -> None:
    command = [sys.executable, "tools/docgen.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
