"""An engine that says what the test wants: the same surface as `Engine`, without a model's steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kernmill.llm.engine import EngineFigures, Generation, GenerationRequest, Piece, SlotState, Usage


class ScriptedEngine:
    """Answers each request with the tokens of `text`, in a thread of its own."""

    text = ""
    has_failed = False
    requests: list[GenerationRequest]

    def __init__(self, model: Any, **options: Any) -> None:
        self.model, self.context, self.requests = model, model.capacity, []

    def submit(self, request: GenerationRequest, on_piece: Callable[[Piece | None], None] | None = None) -> Generation:
        self.requests.append(request)
        generation = Generation(Usage(len(request.tokens)), on_piece, lambda: None)
        threading.Thread(target=self._say, args=(generation,)).start()
        return generation

    def _say(self, generation: Generation) -> None:
        tokenizer = self.model.tokenizer
        stream = tokenizer.stream()
        for made, token in enumerate(tokenizer.encode(self.text, add_special=False, parse_special=True), 1):
            generation.usage = Usage(generation.usage.prompt_tokens, 0, made)
            generation.give(Piece(stream.push(token), (token,)))
        generation.end("stop")

    def slots(self) -> list[SlotState]:
        return []

    def figures(self) -> EngineFigures:
        return EngineFigures(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    def close(self, wait_s: float = 0) -> None:
        pass
