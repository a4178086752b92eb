"""`kernmill serve`: from the options of the command line to the server."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernmill.ir import SettingError

from ..llm import folders
from ..serve.limits import ServerOptions
from ..serve.running import run as serve
from . import generation, options

__all__ = ["run"]


def run(given: argparse.Namespace, wanted: Any) -> int:
    """Serve until a signal ends it; returns the exit status. `wanted`: the split over several devices.

    Raises:
        SettingError: no model, a value outside its range, or an address that cannot be used.
    """
    paths = _paths(given)
    for path in paths.values():
        folders.read_any(path)  # a mistake is reported now, not when the model is loaded
    return serve(
        paths,
        ServerOptions(
            host=given.host, port=given.port, api_keys=_keys(given), cors_origins=_comma_separated(given.cors_origins),
            api_prefix=_prefix(given.api_prefix), body_bytes=given.max_body << 20, timeout_s=given.timeout,
            stall_s=given.stall_timeout, ping_s=given.sse_ping_interval, drain_s=given.drain, slots=given.parallel,
            queue=given.queue, chunk=given.chunk, context=given.ctx_size, cache_type=options.cache_types(given),
            split=wanted, sampling=generation.sampling("serve", given), template=generation.template("serve", given),
            template_values=generation.template_values(given), adapters=generation.adapters("serve", given),
            draft=generation.draft("serve", given), keep=generation.kept("serve", given),
            stop=generation.stops(given), max_tokens=given.n_predict, ignores_end=given.ignore_eos,
            form=_form_of(given), reasoning_format=given.reasoning_format, warms_up=not given.no_warmup,
            has_page=not given.no_webui, shows_slots=not given.no_slots, shows_metrics=not given.no_metrics,
            slot_folder=_folder(given.slot_save_path), models_max=given.models_max,
            models_bytes=(given.models_memory or 0) << 20, idle_s=given.sleep_idle_seconds or 0,
            is_verbose=given.verbose,
        ),
    )  # fmt: skip


def _form_of(given: argparse.Namespace) -> dict[str, Any] | None:
    """Return the form of texts as a response_format; None: any text.

    Raises:
        SettingError: two of them, a file that cannot be read, or a schema that is not JSON.
    """
    found = generation.grammar("serve", given)
    if found is None:
        return None
    kind, source = found
    if kind == "gbnf":
        return {"type": "grammar", "grammar": source}
    try:
        return {"type": "json_schema", "json_schema": {"schema": json.loads(source)}}
    except (ValueError, RecursionError):
        raise SettingError("serve: --json-schema: must be JSON.") from None


def _folder(path: str | None) -> str | None:
    if path is not None:
        options.check_path("serve", path, "Give the path of a folder.")
        if not os.path.isdir(path):
            raise SettingError(f"serve: --slot-save-path {path}: there is no such folder.")
    return path


def _paths(given: argparse.Namespace) -> dict[str, str]:
    """Return the file of each name."""
    hub = options.from_hub("serve", given)
    paths = [*given.paths, *(given.model or ()), *([] if hub is None else [hub])]
    for path in paths:
        options.check_path("serve", path, "Give a GGUF file.")
    if given.models_dir is not None:
        options.check_path("serve", given.models_dir, "Give the path of a folder.")
        if not os.path.isdir(given.models_dir):
            raise SettingError(f"serve: --models-dir {given.models_dir}: there is no such folder.")
        paths += sorted(str(path) for path in Path(given.models_dir).glob("*.gguf"))
    if not paths:
        raise SettingError("serve: no model. Give a GGUF file: kernmill serve model.gguf.")
    if given.alias is not None and len(paths) > 1:
        raise SettingError(f"serve: --alias {given.alias} is for one model, and there are {len(paths)}.")
    return {given.alias: paths[0]} if given.alias else names_of(paths)


def names_of(paths: list[str]) -> dict[str, str]:
    """Return a name for each file: its own without .gguf; a number follows a name that is taken."""
    found: dict[str, str] = {}
    for path in paths:
        name = base = Path(path).name.removesuffix(".gguf")
        count = 1
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found[name] = path
    return found


def _keys(given: argparse.Namespace) -> tuple[str, ...]:
    keys = [key for text in given.api_key or () for key in _comma_separated(text)]
    if given.api_key_file is not None:
        lines = generation.file_text("serve", given.api_key_file, "--api-key-file").splitlines()
        keys += _stripped([line for line in lines if not line.startswith("#")])
    if not keys:
        keys = list(_comma_separated(os.environ.get("KERNMILL_API_KEY")))
    if (given.api_key or given.api_key_file is not None) and not keys:
        raise SettingError("serve: the API key is empty. Give at least one character, or leave the option out.")
    return tuple(keys)


def _comma_separated(text: str | None) -> tuple[str, ...]:
    return tuple(_stripped((text or "").split(",")))


def _stripped(parts: list[str]) -> Iterator[str]:
    return (part.strip() for part in parts if part.strip())


def _prefix(text: str) -> str:
    prefix = text.rstrip("/")
    if prefix and not prefix.startswith("/"):
        raise SettingError(f"serve: --api-prefix {text}: must begin with /.")
    return prefix
