"""The page of architectures: what each is, and how near its logits are to llama.cpp's, from tests/llama_cpp.json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

from kernmill.llm.arch import ARCHITECTURES, Architecture
from tests.llama_cpp import GELU_LIMIT, LIMIT, RESULTS
from tests.tiny_models import CASES

__all__ = ["COLUMNS", "INTRO", "architectures"]

COLUMNS = ("general.architecture", "models", "what it is", "compared", "distance")
INTRO = (
    f"{len(ARCHITECTURES)} architectures. Each was compared with llama.cpp on tiny models with random weights, in\n"
    "float32: all logits of a text of 41 tokens, then 12 tokens one by one, whose best must be the same.\n"
    "Of encoders the vector of the text is compared. *Distance* is the largest difference in standard\n"
    f"deviations of all results: at most {LIMIT:g}, or {GELU_LIMIT:g} where llama.cpp reads GELU from a table of\n"
    "float16. *Compared* is the number of tiny models. `python -m tests.llama_cpp NAME` compares again.\n"
    "How to add an architecture: [add-a-model](how-to/add-a-model.md).\n"
)


def _models(kind: type[Architecture]) -> str:
    """The models that the first line of a file names."""
    line = (sys.modules[kind.__module__].__doc__ or "").split("\n", 1)[0]
    return re.sub(r"^[^:]*: ", "", line).rstrip(".")


def _kinds(name: str, kind: type[Architecture]) -> str:
    """The kind of an architecture, by its class and its tiny models."""
    is_pair = name == "t5"
    words = "encoder and decoder" if is_pair else "encoder" if kind.is_encoder else "decoder"
    words = "with states" if kind.has_states else words
    counts = {bool(case.keys.get("expert_count")) for case in CASES.values() if case.arch == name}
    return words + ("" if True not in counts else ", some with experts" if False in counts else ", experts")


def architectures() -> Iterator[tuple[object, ...]]:
    """A row for each architecture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name, kind in sorted(ARCHITECTURES.items()):
        cases = [case for case in CASES if CASES[case].arch == name]
        differs = " ".join(CASES[case].differs for case in cases).strip()
        far = [results[case][part] for case in cases if case in results for part in ("prompt", "step")]
        distance = differs or (f"{max(far):.1e}" if far else "not compared")
        yield f"`{name}`", _models(kind), _kinds(name, kind), len(cases), distance
