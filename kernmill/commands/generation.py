"""From the options of a command line to how text is generated: sampling, grammars, chat templates."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from kernmill.ir import SettingError

from ..llm import folders
from ..llm.adapters import AdapterScales
from ..llm.sampling import SamplingOptions
from ..llm.sequences import DraftOptions
from ..llm.sequences.drafts import GUESSES, MOST_GUESSES
from . import options

__all__ = ["adapters", "draft", "file_text", "grammar", "kept", "sampling", "stops", "template", "template_values"]

_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature",
}  # fmt: skip
_OPTION_NAMES = {"repeat_last": "repeat_last_n", "typical_p": "typical", "dynatemp_exponent": "dynatemp_exp",
                 "mirostat_tau": "mirostat_ent", "mirostat_eta": "mirostat_lr"}  # fmt: skip


def sampling(command: str, given: argparse.Namespace) -> SamplingOptions:
    """Return the sampling of a command line.

    Raises:
        SettingError: a value outside its range, with the name of its option.
    """
    names = [one.name for one in fields(SamplingOptions)]
    own = {"logit_bias", "samplers", "dry_sequence_breakers"}
    values: dict[str, Any] = {name: getattr(given, _OPTION_NAMES.get(name, name)) for name in names if name not in own}
    if given.samplers is not None:
        values["samplers"] = given.samplers
    if given.sampler_seq is not None:
        if unknown := [letter for letter in given.sampler_seq if letter not in _LETTERS]:
            raise SettingError(f"{command}: --sampler-seq {given.sampler_seq}: {unknown[0]} must be one of edskypmxt.")
        values["samplers"] = tuple(_LETTERS[letter] for letter in given.sampler_seq)
    if given.dry_sequence_breaker is not None:
        values["dry_sequence_breakers"] = tuple(
            options.typed_text(text) for text in given.dry_sequence_breaker if text != "none"
        )
    try:
        return SamplingOptions(**values, logit_bias=dict(given.logit_bias or ()))
    except SettingError as error:
        name, mark, rest = str(error).removeprefix("SamplingOptions: ").partition("=")
        option = _OPTION_NAMES.get(name, name).replace("_", "-")
        raise SettingError(f"{command}: {f'--{option} {rest}' if mark else name}") from None


def grammar(command: str, given: argparse.Namespace) -> tuple[str, str] | None:
    """Return the kind of the grammar that text must follow, and its source; None: any text.

    Raises:
        SettingError: two of them, or a file that cannot be read.
    """
    names = {"--grammar": "gbnf", "--grammar-file": "gbnf", "--json-schema": "json_schema",
             "--json-schema-file": "json_schema"}  # fmt: skip
    found = {name: value for name in names if (value := getattr(given, name[2:].replace("-", "_"))) is not None}
    if len(found) > 1:
        raise SettingError(f"{command}: {' and '.join(found)} are both a grammar. Give one.")
    for name, value in found.items():
        return names[name], file_text(command, value, name) if name.endswith("-file") else value
    return None


def adapters(command: str, given: argparse.Namespace) -> AdapterScales:
    """Return the adapters and control vectors of a command line by path, with their scales.

    Raises:
        SettingError: layers of control vectors, and there are none.
    """
    vectors = dict.fromkeys(given.control_vector or (), 1.0) | dict(given.control_vector_scaled or ())
    found = AdapterScales(dict.fromkeys(given.lora or (), 1.0) | dict(given.lora_scaled or ()) | vectors)
    found.layers = given.control_vector_layer_range
    if found.layers is not None and not vectors:
        raise SettingError(f"{command}: --control-vector-layer-range needs a control vector: --control-vector FILE.")
    return found


def draft(command: str, given: argparse.Namespace) -> DraftOptions | None:
    """Return how next tokens are guessed; None: they are not.

    Raises:
        SettingError: two ways, a value outside its range, or sizes without a draft. FormatError: no GGUF file.
    """
    names = {"draft_max": "most", "draft_min": "least", "draft_p_min": "certainty"}
    values = {field: value for name, field in names.items() if (value := getattr(given, name)) is not None}
    source = "ngram" if given.spec_type == "ngram-simple" else given.model_draft
    if source is None:
        if values:
            raise SettingError(f"{command}: --draft-max and its like are for a draft. Add -md FILE or --spec-type.")
        return None
    if given.model_draft is not None:
        options.check_path(command, given.model_draft, "Give a GGUF file with -md.")
        if given.spec_type is not None:
            raise SettingError(f"{command}: -md and --spec-type are both a draft. Give one.")
        folders.read_any(given.model_draft)
    if not values.get("least", 0) <= values.get("most", GUESSES) <= MOST_GUESSES:
        raise SettingError(
            f"{command}: --draft-max {values.get('most', GUESSES)} with --draft-min {values.get('least', 0)}: the "
            f"first must be at most {MOST_GUESSES}, and the second at most the first."
        )
    if not 0 <= values.get("certainty", 0) <= 1:
        raise SettingError(f"{command}: --draft-p-min {values['certainty']}: must be from 0 to 1.")
    return DraftOptions(str(source), **values)


def kept(command: str, given: argparse.Namespace) -> int | None:
    """Return how many tokens stay when a full context is shifted; None: it ends a text.

    Raises:
        SettingError: tokens are kept, and no context is shifted.
    """
    if given.keep is not None and not given.context_shift:
        raise SettingError(f"{command}: --keep {given.keep} is for --context-shift. Add it.")
    return int(given.keep or 0) if given.context_shift else None


def template_values(given: argparse.Namespace) -> dict[str, Any]:
    """Return the variables of the chat template."""
    found: dict[str, Any] = {} if given.reasoning == "auto" else {"enable_thinking": given.reasoning == "on"}
    if given.reasoning_effort not in (None, "default"):
        found["reasoning_effort"] = given.reasoning_effort
    return found | (given.chat_template_kwargs or {})


def stops(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the strings that end a text."""
    return tuple(options.typed_text(text, given) for text in given.stop or ())


def template(command: str, given: argparse.Namespace) -> str | None:
    """Return the Jinja source that replaces a file's template; None: none does.

    Raises:
        SettingError: two of them, no Jinja source, or a file that cannot be read.
    """
    if None not in (given.chat_template, given.chat_template_file):
        raise SettingError(f"{command}: --chat-template and --chat-template-file are both a template. Give one.")
    if given.chat_template_file is not None:
        return file_text(command, given.chat_template_file, "--chat-template-file")
    source: str | None = given.chat_template
    if source is not None and "{" not in source:
        raise SettingError(
            f"{command}: --chat-template {source}: must be Jinja source. Save the template to a file, and give it with "
            "--chat-template-file."
        )
    return source


def file_text(command: str, path: str, option: str) -> str:
    """Return the text of a file that an option names.

    Raises:
        SettingError: it cannot be read.
    """
    options.check_path(command, path, f"Give a file with {option}.")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingError(f"{command}: {option} {path}: cannot be read: {why}.") from None
