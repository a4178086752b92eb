"""docs/reference: a page for each family of methods and each public module, made from signatures and docstrings.

Every public method of Tensor, every function of `kernmill`, every layer and optimizer needs an example in
docs/reference/examples.txt; tests/test_docs.py runs the examples on the pages.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernmill
from kernmill import Tensor, distributions, nn, synonyms

__all__ = ["reference"]

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "reference" / "examples.txt"
SETUP = """
    >>> import numpy as np
    >>> import kernmill
    >>> from kernmill import Tensor, nn, no_grad
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> v = Tensor([3.0, -1.0, 2.0])
    >>> i = Tensor([2, 0, 1])
    >>> w = Tensor([1.0, 2.0], requires_grad=True)
    >>> image = Tensor.arange(16).float().reshape(1, 1, 4, 4)
    >>> def show(t): return np.round(t.numpy().astype(float), 3).tolist()
"""
FAMILIES = {  # the module that defines a method, and the title of its page
    "creation": "Creating tensors",
    "random": "Random numbers",
    "casting": "Dtypes, devices and copies",
    "movement": "Shapes: reshape, pad, join, split",
    "indexing": "Indexing by tensors",
    "searching": "Searching, selecting and segments",
    "elementwise": "Arithmetic, comparison and logic",
    "functions": "Math functions",
    "float_bits": "Bits of floats",
    "activations": "Activations",
    "reduce": "Reductions",
    "scan": "Sorting and cumulative operations",
    "contraction": "Products",
    "matrices": "Matrices",
    "factors": "Linear systems and factorizations",
    "special": "Special functions",
    "incomplete": "Incomplete gamma and beta functions",
    "statistics": "Distinct values, histograms, covariance",
    "images": "Images",
    "spectral": "Eigenvalues and singular values",
    "convolution": "Convolutions and pooling",
    "attention": "Attention and dropout",
    "losses": "Losses",
    "tensor": "Values, gradients and properties",
}
SETUP_FILES = """    >>> import tempfile
    >>> from kernmill import llm, quant
    >>> folder = tempfile.TemporaryDirectory()
"""
MODULES = {  # what users of a module call; `quant` has more for those who add a block type
    "functional": ("Functions of functions", ("grad", "value_and_grad", "vjp", "jvp", "jacobian", "hessian", "vmap",
                                              "custom_gradient", "checkpoint", "scan", "while_loop", "cond")),
    "data": ("Batches of examples", ("DataLoader", "Folder")),
    "linalg": ("Linear algebra by NumPy's names", ("norm", "matrix_norm", "vector_norm", "cond", "eig", "eigvals",
                                                   "multi_dot", "vecdot",
                                                   "diagonal", "trace", "lstsq")),
    "complex_tensor": ("Complex tensors", ("ComplexTensor",)),
    "fft": ("Fourier transforms by NumPy's names", ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "rfftn",
                                                    "fftfreq", "rfftfreq", "fftshift")),
    "nn.state": ("Files of weights", ("save", "load", "load_metadata")),
    "quant": ("Quantized tensors and GGUF files", ("QuantizedTensor", "block_type", "save", "load", "load_tensor")),
    "llm": ("Language models", ("stories", "Vocabulary", "llama_metadata", "Learner", "Model", "Sampler", "Tokenizer",
                                "ChatTemplate", "LLM", "Reply")),
    "dist": ("Several machines", ("rank", "size", "data_parallel", "no_sync", "share", "all_reduce", "all_gather",
                                  "reduce_scatter", "broadcast", "send", "recv", "barrier", "agree", "communicator",
                                  "use", "run_threads")),
}  # fmt: skip
_LEFT_OUT = ("data", "node_shape")  # one raises an error that names what to write, the other is for our own methods
_ERROR = re.compile(r"^ +\w+Error: ")
_SECTION = re.compile(r"^(Shapes|Dtypes|Units|Raises|Source):\s*(.*)$")


def _taken(shown: dict[str, list[str]], name: str) -> list[str]:
    """Remove an example and return it."""
    if name not in shown:
        raise KeyError(f"docs/reference/examples.txt has no example of {name}: add its name, a doctest, an empty line")
    return shown.pop(name)


def examples() -> dict[str, list[str]]:
    """The lines of each example, by the name of what it shows."""
    parts = EXAMPLES.read_text(encoding="utf-8").strip().split("\n\n")
    return {part.splitlines()[0]: part.splitlines()[1:] for part in parts}


def _text(docstring: str) -> str:
    """A docstring as Markdown: sections (Raises, Dtypes, ..) as paragraphs, errors as a list, doctests unchanged."""
    lines: list[str] = []
    for line in docstring.splitlines():
        if found := _SECTION.match(line):
            lines.append(f"*{found[1]}*: {found[2]}".rstrip())
        elif _ERROR.match(line):
            lines += [*([""] if lines[-1].startswith("*Raises") else []), f"- {line.strip()}"]
        else:
            lines.append(line if ">>>" in line else line.strip())
    return "\n".join(lines).strip()


def _signature(found: Any) -> str:
    known = inspect.signature(found)
    plain = [p.replace(annotation=p.empty) for p in known.parameters.values() if p.name not in ("self", "cls")]
    return str(known.replace(parameters=plain, return_annotation=known.empty))


def _entry(title: str, found: Any, example: list[str]) -> str:
    parts = [f"## `{title}`", _text(inspect.getdoc(found) or "")]
    if example:
        parts.append("\n".join(f"    {line}" for line in example))
    return "\n\n".join(part for part in parts if part) + "\n"


def _methods() -> Iterator[tuple[str, str, Any]]:
    """Family, name and attribute of each public method and property of Tensor."""
    for name in dir(Tensor):
        if name.startswith("_") or name in synonyms.METHODS or name in _LEFT_OUT:
            continue
        owner = next(kind for kind in Tensor.__mro__ if name in vars(kind))
        family = owner.__module__.rpartition(".")[2]
        yield family if family in FAMILIES else "tensor", name, vars(owner)[name]


def _of_tensor(shown: dict[str, list[str]]) -> dict[str, str]:
    entries: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for family, name, attribute in _methods():
        if isinstance(attribute, property):
            entries[family].append(_entry(f"x.{name}", attribute.fget, _taken(shown, name)))
            continue
        found = inspect.unwrap(getattr(Tensor, name))
        prefix = "Tensor" if isinstance(attribute, (classmethod, staticmethod)) else "x"
        entries[family].append(_entry(f"{prefix}.{name}{_signature(found)}", found, _taken(shown, name)))
    return {f"tensor-{family.replace('_', '-')}.md": "\n".join([f"# {FAMILIES[family]}\n{SETUP}", *made])
            for family, made in entries.items()}  # fmt: skip


def _of_names(title: str, prefix: str, owner: Any, names: list[str], shown: dict[str, list[str]]) -> str:
    made = [f"# {title}\n{SETUP}"]
    for name in names:
        found = getattr(owner, name)
        made.append(_entry(f"{prefix}.{name}{_signature(found)}", found, _taken(shown, f"{prefix}.{name}")))
    return "\n".join(made)


def _documented(title: str, prefix: str, names: tuple[str, ...], shown: dict[str, list[str]]) -> str:
    """Classes with their public methods, and functions, of a module, in the order of their examples."""
    module = importlib.import_module(f"kernmill.{prefix}")
    made = [f"# {title}\n{SETUP}{SETUP_FILES}"]
    entries: dict[str, str] = {}
    for name in names:
        found = getattr(module, name)
        entries[f"{prefix}.{name}"] = _entry(f"{name}{_signature(found)}", found, [])
        for method in vars(found) if inspect.isclass(found) else ():
            bound = inspect.unwrap(getattr(found, method))
            if not method.startswith("_") and (inspect.isfunction(bound) or inspect.ismethod(bound)):
                entries[f"{prefix}.{name}.{method}"] = _entry(f"{name}.{method}{_signature(bound)}", bound, [])
    order = [name for name in shown if name in entries]
    for name in [*order, *(name for name in entries if name not in order)]:
        example = "\n".join(f"    {line}" for line in _taken(shown, name))
        made.append(f"{entries[name]}\n{example}\n")
    return "\n".join([*made, "    >>> folder.cleanup()\n"])


def _errors() -> str:
    rows = [f"- `{name}`: {inspect.getdoc(getattr(kernmill, name))}" for name in kernmill.__all__ if "Error" in name]
    return "# Errors\n\n" + "\n".join(" ".join(row.split()) for row in rows) + "\n"


_OPERATORS = """

## Operators

| written | meaning |
| --- | --- |
| `x + y`, `x - y`, `x * y`, `x / y`, `x // y`, `x % y`, `x ** y`, `-x`, `abs(x)` | arithmetic, with broadcasting |
| `x @ y` | `x.matmul(y)` |
| `x < y`, `x <= y`, `x == y`, `x != y`, `x > y`, `x >= y` | comparisons, of dtype bool |
| `x & y`, `x \\| y`, `x ^ y`, `~x`, `x << y`, `x >> y` | logic and bits |
| `x += y` and the like | write to `x`; its dtype stays |
| `x[1, 2:5, ..., None]` | a view: ints, slices, `...` and None |
| `x[index]` | rows or elements by a list or an int tensor, a copy |
| `x[..] = y`, `x[mask] = y` | write a part, or the elements where a mask is true |
| `len(x)`, `2 in x`, `float(x)`, `int(x)`, `bool(x)` | values of the host |
"""


def _index(pages: dict[str, str]) -> str:
    rows = [f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({name})" for name, text in pages.items()]
    names = ", ".join(f"`{new}` is `{old}`" for new, old in sorted(synonyms.METHODS.items()))
    intro = "# API reference\n\nGenerated from docstrings; each example is run by the tests.\n\n"
    return intro + "\n".join(rows) + f"{_OPERATORS}\n\n## Other names of methods\n\n{names}.\n"


def reference() -> dict[str, str]:
    """All pages by name. Raises KeyError for a method without an example, ValueError for an example of nothing."""
    shown = examples()
    pages = _of_tensor(shown)
    functions = sorted(
        name
        for name in kernmill.__all__
        if name[0].islower() and name not in ("nn", "dtypes", "array_api", "distributions", *MODULES)
    )
    pages["kernmill.md"] = _of_names("Functions of kernmill", "kernmill", kernmill,
                                     [*functions, "Context", "Variable"], shown)  # fmt: skip
    layers = [name for name in nn.__all__ if isinstance(getattr(nn, name), type)]
    pages["nn.md"] = _of_names("Layers", "nn", nn, layers, shown)
    drawn = [name for name in distributions.__all__ if name != "Distribution"]
    pages["distributions.md"] = _of_names("Probability distributions", "distributions", distributions, drawn, shown)
    optimizers = [name for name in nn.optim.__all__ if name not in ("Group", "Optimizer", "lr_scheduler")]
    schedules = [name for name in nn.optim.lr_scheduler.__all__ if name != "LRScheduler"]
    pages["nn-optim-lr_scheduler.md"] = _of_names(
        "Schedules of the rate", "nn.optim.lr_scheduler", nn.optim.lr_scheduler, schedules, shown
    )
    pages["nn-optim.md"] = _of_names("Optimizers", "nn.optim", nn.optim, optimizers, shown)
    for prefix, (title, names) in MODULES.items():
        pages[f"{prefix.replace('.', '-')}.md"] = _documented(title, prefix, names, shown)
    pages["errors.md"] = _errors()
    if shown:
        raise ValueError(f"examples.txt shows what is not public: {', '.join(shown)}")
    return {"README.md": _index(pages), **pages}
