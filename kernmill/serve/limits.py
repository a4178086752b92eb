"""Limits of the server, and who may use it: sizes, times, keys, origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from ..llm.sampling import SamplingOptions
from ..llm.sequences import DraftOptions
from ..llm.split import SplitOptions

__all__ = ["ServerOptions"]


@dataclass(frozen=True)
class ServerOptions:
    """How the server runs.

    host, port    the address.
    api_keys      keys of clients; empty: none is needed.
    cors_origins  pages of other origins that may call it.
    body_bytes    size of a request.
    timeout_s     time after which an answer ends with finish_reason "length"; 0: no limit.
    stall_s       time that a client may leave sent text unread.
    ping_s        time between comments in a stream without text.
    drain_s       time that running answers have after SIGTERM.
    stop, max_tokens, ignores_end, form (a response_format), reasoning_format  of requests that do not say them.
    slots, queue  texts at once, and texts that wait, for each model.
    template_values  variables of the chat template, where a request gives none.
    adapters      scales of LoRA adapters by path, of every model.
    draft         how next tokens are guessed; None: they are not.
    keep          tokens that stay when a full context is shifted, -1: the prompt; None: a full context ends a text.
    warms_up      build all graphs before the first request; else each is built when first needed.
    slot_folder   where clients may save the texts of slots; None: nowhere.
    context       tokens of a text; None: as trained, at most 4096; 0: as trained
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    api_prefix: str = ""
    body_bytes: int = 8 << 20
    timeout_s: float = 0
    stall_s: float = 60
    ping_s: float = 15
    drain_s: float = 30
    slots: int = 4
    queue: int = 64
    chunk: int = 256
    context: int | None = None
    cache_type: tuple[str, str] = ("f32", "f32")
    split: SplitOptions | None = None
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    ignores_end: bool = False
    form: Mapping[str, Any] | None = None
    reasoning_format: str = "auto"
    template: str | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    adapters: Mapping[str, float] = field(default_factory=dict[str, float])
    draft: DraftOptions | None = None
    keep: int | None = None
    warms_up: bool = True
    has_page: bool = True
    shows_slots: bool = True
    shows_metrics: bool = True
    slot_folder: str | None = None
    models_max: int = 1
    models_bytes: int = 0
    idle_s: float = 0
    is_verbose: bool = False

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # a name
            return self.host == "localhost"
