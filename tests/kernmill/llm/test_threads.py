"""One model used by several threads, and by other calls while a generator is suspended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kernmill.llm.generate import Model
from kernmill.llm.sampling import Sampler

_PROMPTS = [[1, 5, 9], [1, 7, 200, 31, 44], [1, 100], [1, 5, 9, 11, 13, 17]]


def _texts(model: Model, prompt: list[int]) -> list[int]:
    return list(model.generate(prompt, Sampler(temperature=0), max_tokens=12))


def test_threads_get_the_texts_that_one_thread_gets(made: Callable[..., Path]) -> None:
    model = Model.from_gguf(made(), tokenizer=None)
    wanted = [_texts(model, prompt) for prompt in _PROMPTS]
    hidden = [model.hidden(prompt).numpy() for prompt in _PROMPTS]
    wrong: list[Any] = []

    def work(number: int) -> None:
        for _ in range(3):
            if (text := _texts(model, _PROMPTS[number])) != wanted[number]:
                wrong.append((number, text))
            if not np.allclose(model.hidden(_PROMPTS[number]).numpy(), hidden[number], atol=1e-5):
                wrong.append((number, "hidden"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(_PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_suspended_generator_goes_on_with_its_text(made: Callable[..., Path]) -> None:
    model = Model.from_gguf(made(), tokenizer=None)
    wanted = [_texts(model, prompt) for prompt in _PROMPTS]
    running = [model.generate(prompt, Sampler(temperature=0), max_tokens=12) for prompt in _PROMPTS]
    found: list[list[int]] = [[] for _ in _PROMPTS]
    for _ in range(12):
        for text, tokens in zip(found, running, strict=True):
            text += [token for token in [next(tokens, None)] if token is not None]
        model.embed(_PROMPTS[1])
    model.reset()
    assert found == wanted
