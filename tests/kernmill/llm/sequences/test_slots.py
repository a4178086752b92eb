from __future__ import annotations

import numpy as np

from kernmill.llm.sequences import Generation, GenerationRequest, Slot, SlotState, Task, Usage
from kernmill.llm.sequences.slots import common_length


def task(**options: object) -> Task:
    generation = Generation(Usage(2), None, lambda: None)
    return Task(GenerationRequest([5, 6], **options), generation, None, 8)  # type: ignore[arg-type]


def test_common_lengths() -> None:
    assert [common_length([1, 2, 3], other) for other in ([], [1], [1, 2, 3, 4], [1, 2, 4], [4])] == [0, 1, 3, 2, 0]


def test_a_task_takes_tokens_until_its_limit() -> None:
    one = task(max_tokens=2, logprobs=2)
    logits = np.log(np.array([0.125, 0.5, 0.375]))
    assert one.take(logits) == 1
    assert not one.has_ended
    one.take(logits)
    assert one.has_ended
    assert one.ids == [5, 6, 1, 1]
    pieces = [*one.generation]
    assert [piece.tokens for piece in pieces] == [(1,), (1,)]
    assert [token for token, _ in pieces[0].logprobs[0].top] == [1, 2]
    np.testing.assert_allclose(pieces[0].logprobs[0].logprob, np.log(0.5))
    assert (one.generation.finish_reason, one.generation.usage) == ("length", Usage(2, 0, 2))


def test_the_context_limits_a_text() -> None:
    assert [task().limit, task(max_tokens=3).limit, task(max_tokens=30).limit] == [7, 3, 7]


def test_the_state_of_a_slot() -> None:
    slot = Slot(1, [5])
    assert slot.state() == SlotState(1, False, 1, 0, 0, 0, 0)
    slot.task = task()
    assert slot.left == 1
    assert slot.state() == SlotState(1, True, 1, 2, 0, 0, 1)
