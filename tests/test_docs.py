"""The documents say what is true, in plain words: doctests run, generated pages are fresh, links have a target."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prose

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
    text = page.read_text(encoding="utf-8")
    dead = []
    for link, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?[^)]*\)", text):
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{link}#{anchor}" if anchor else link)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    titles = re.findall(r"(?m)^#+ +(.*?) *$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_site_has_every_page() -> None:
    """A page that no table of contents names is found by nobody; Sphinx warns of it."""
    docs = ROOT / "docs"
    entries = re.findall(r"(?m)^([\w*/-]+)$", (docs / "index.md").read_text(encoding="utf-8"))
    named = {path for entry in entries for path in docs.glob(f"{entry}.md")}
    assert {page for page in docs.rglob("*.md") if page not in named} == {docs / "index.md"}


# --- prose -----------------------------------------------------------------------------------------------------------
FOR_PEOPLE = [
    ROOT / "README.md",
    *(p for f in ("topics", "how-to", "tutorial") for p in (ROOT / "docs" / f).glob("*.md")),
]


def test_prose_uses_the_words_of_the_field() -> None:
    """Private words, sentences above 30 words, docstrings that begin with *Whether* or *What*: by file.

    `python -m tests.prose FILE` shows them with better words.

    Write the sentence otherwise. After a file was renamed, run `python -m tests.prose --shrink`.
    """
    over = {name: count for name, count in prose.counts().items() if count > prose.allowed().get(name, 0)}
    assert not over, f"{over}: python -m tests.prose FILE shows what to write instead"


def test_an_allowance_is_used() -> None:
    """An allowance for a file that is not there any more would serve a later one of that name."""
    assert set(prose.allowed()) <= {path.name for path in [*prose.pages(), *prose.sources()]}


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_short(page: Path) -> None:
    assert len(written(page).split()) <= 1500


LATER_PAGES = {  # KB that later issues brought, above the 200 of the rebuilt docs, and what for
    "use-several-machines": 6,
    "serve": 5,
    "run-an-onnx-model": 3,
    "use-torch-compile": 2,
    "profile": 5,
    "topics/placement": 4,
    "topics/hexagon, the example of four sessions": 5,
    "topics/arm": 1,
    "array-api": 5,
    "topics/schedules": 5,
    "how-to/add-a-machine": 3,
    "README": 1,
    "gradients: vmap, custom gradients, loops": 3,
    "quantize: types of tensors, importance, split files, perplexity": 3,
    "topics/opencl: drivers that were tried, forms without functions": 1,
    "run-a-model: drafts, context shift, weights in the cache, folders of Hugging Face": 3,
}


def test_the_pages_together_are_short() -> None:
    limit = 200_000 + 1000 * sum(LATER_PAGES.values())
    assert sum(len(written(page).encode()) for page in FOR_PEOPLE) <= limit


def written(page: Path) -> str:
    """What a person wrote of a page."""
    return re.sub(r"<!--[^>]*generated by.*?<!-- End[^>]*-->", "", page.read_text(encoding="utf-8"), flags=re.S)


def test_topics_name_files_that_exist() -> None:
    """By name, or by the end of the path where several files have the name."""
    paths = [*SOURCES, *(ROOT / "tools").glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    there = [f"/{path.relative_to(ROOT).as_posix()}" for path in paths]
    for page in (ROOT / "docs" / "topics").glob("*.md"):
        lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Code:")]
        named = {name for line in lines for name in re.findall(r"`([\w./]+\.py)`", line)}
        assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == [], page.name


def test_topics_name_what_exists() -> None:
    """An identifier on a topic page is in the code: a page that nobody updates after a renaming is found."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")])
    there = {*re.findall(r"\w+", text), *(path.stem for path in SOURCES), "MADV_POPULATE_WRITE", "has_events"}
    classes = {*re.findall(r"(?m)^ *class (\w+)", text)}
    for page in (ROOT / "docs" / "topics").glob("*.md"):
        named = re.findall(r"`([A-Za-z_][\w.]*)`", page.read_text(encoding="utf-8"))
        parts = {part for name in named if "_" in name for part in name.split(".") if part != "py"}
        assert parts <= there, page.name
        owners = {name.split(".")[0] for name in named if re.fullmatch(r"[A-Z]\w*[a-z]\w*\.[a-z_]+", name)}
        assert owners <= classes, page.name


def test_prose_is_found() -> None:
    """The check itself: words, sentences, and what is not prose."""
    found = [
        fault.instead for fault in prose.faults(prose.words_of_markdown("A row lies `beside` it.\n\n    code lies\n"))
    ]
    assert found == ["is, is stored, is located; interleaved"]
    source = '"""What lies here."""\nx = "lies"  # so many values\n'
    assert len(list(prose.faults(prose.words_of_source(source, prose.nodes_of(source))))) == 2
    assert (
        len(
            list(
                prose.beginnings(
                    prose.nodes_of('def f():\n    """Whether it fits."""\ndef g():\n    """True if it fits."""\n')
                )
            )
        )
        == 1
    )
    assert [fault.instead for fault in prose.faults(["word " * 31 + "."])] == ["two sentences"]
    assert list(prose.faults(["It is written in place. " * 10])) == []


# --- generated pages -------------------------------------------------------------------------------------------------
def test_generated_pages_are_fresh() -> None:
    command = [sys.executable, "tools/docgen.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
