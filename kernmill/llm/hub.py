"""Models of the Hugging Face hub: `owner/name:quant` becomes the path of a downloaded file, in the hub's own cache.

A repository without GGUF files becomes the path of a folder (kernmill/llm/folders), if it has one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from kernmill.ir import SettingError

from .packages import package

__all__ = ["downloaded"]

_USUAL = "Q4_K_M"  # the quantization that is taken where none is named, as in llama.cpp
_OF_FOLDER = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "special_tokens_map.json", "1_Pooling/config.json", "model.safetensors", "model.safetensors.index.json",
)  # fmt: skip
_PART_OF_FOLDER = re.compile(r"model-\d+-of-\d+\.safetensors$")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def downloaded(name: str, file: str | None = None, token: str | None = None) -> str:
    """Return the path of a GGUF file of the hub, or of its first part; of a folder where there is no GGUF file.

    What is not in the hub's cache is downloaded.

    `name`: owner/name, with :quant for one of several files, such as :Q8_0. `file`: the file's own name instead. The
    variables of huggingface_hub choose the server, the folder and the token: HF_ENDPOINT, HF_HOME, HF_TOKEN.

    Raises:
        SettingError: the name is wrong, the hub has no such file, or it cannot be reached.
    """
    repository, _, quant = name.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise SettingError(f"-hf {name}: must be owner/name, or owner/name:quant, such as ggml-org/models:Q8_0.")
    hub: Any = package("huggingface_hub", "-hf")
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        files = hub.HfApi(endpoint=endpoint).list_repo_files(repository, token=token)
        if file is None and (parts := _folder_in(files, name, quant)):
            paths = [hub.hf_hub_download(repository, part, endpoint=endpoint, token=token) for part in parts]
            return os.path.dirname(str(paths[0]))
        chosen = _chosen(files, name, quant, file)
        parts = _parts_of_file(files, chosen)
        paths = [hub.hf_hub_download(repository, part, endpoint=endpoint, token=token) for part in parts]
    except SettingError:
        raise
    except Exception as error:  # the hub's own, those of its HTTP library, and of the disk
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SettingError(f"-hf {name}: the hub did not give it: {reason}") from error
    return str(paths[0])


def _chosen(files: Sequence[str], name: str, quant: str, file: str | None) -> str:
    """Return the file that is meant."""
    if file is not None:
        if file not in files:
            raise SettingError(f"-hf {name}: it has no file {file}. It has: {_listed(files)}.")
        return file
    models = [one for one in sorted(files) if one.endswith(".gguf") and "mmproj" not in one]
    models = [one for one in models if not (part := _PART.search(one)) or int(part[1]) == 1]
    if not models:
        raise SettingError(f"-hf {name}: it has no GGUF file. Give the name of a repository with GGUF files.")
    pattern = re.compile(rf"(?:^|[-._/]){re.escape(quant or _USUAL)}(?=[-._/])", re.IGNORECASE)
    found = [one for one in models if pattern.search(one)]
    if quant and not found:
        raise SettingError(f"-hf {name}: it has no file of {quant}. It has: {_listed(models)}.")
    return [*found, *models][0]


def _folder_in(files: Sequence[str], name: str, quant: str) -> list[str]:
    """Return the files of a folder, config.json first, where there are no GGUF files."""
    if any(one.endswith(".gguf") for one in files) or "config.json" not in files:
        return []
    if quant:
        raise SettingError(
            f"-hf {name}: it has no GGUF files, so none is of {quant}; its weights can be quantized while they load. "
            f"Run: -hf {name.partition(':')[0]} --quantize {quant}."
        )
    return [one for one in _OF_FOLDER if one in files] + [one for one in files if _PART_OF_FOLDER.fullmatch(one)]


def _parts_of_file(files: Sequence[str], chosen: str) -> list[str]:
    """Return all parts of a split file, the first one first."""
    part = _PART.search(chosen)
    if part is None:
        return [chosen]
    stem = chosen[: part.start()]
    return sorted(one for one in files if (found := _PART.search(one)) and one[: found.start()] == stem)


def _listed(files: Sequence[str]) -> str:
    shown = sorted(files)[:20]
    return ", ".join([*shown, *([f"and {len(files) - 20} more"] if len(files) > 20 else [])])
