"""class Engine: many texts at once from one model, the step interface of a server.

    engine = Engine(model, slots=4)
    generation = engine.submit(GenerationRequest(tokens, SamplingOptions(temperature=0), max_tokens=64, stop=("\\n",)))
    for piece in generation:              # Piece(text, tokens, logprobs); or engine.submit(request, on_piece=call)
        print(piece.text, end="")
    generation.finish_reason, generation.usage
    generation.cancel()                   # from any thread; the slot is free before the next token
    engine.slots(); engine.figures()
    engine.close(wait_s=5)

A request waits in a queue until one of the slots is free. A slot holds one sequence of the cache. Each turn of the
engine's thread computes one token for all slots that generate, then one piece of the prompt of one slot; slots take
turns with their prompts. Greedy texts are the same as of one request alone, up to the order in which floats are added.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from kernmill.ir import IndexRangeError, KernmillError, SettingError

from ..arguments import is_whole
from .arch.cache import CacheTypes
from .context_shift import dropped_tokens, kept_tokens
from .generate import Model
from .generation import stop_strings
from .sampling import SamplingOptions
from .sequences import (
    DraftOptions,
    DraftSource,
    Generation,
    GenerationRequest,
    ModelDraft,
    NgramDraft,
    Piece,
    QueueFull,
    Slot,
    SlotBusy,
    SlotState,
    Steps,
    Task,
    TokenLogprob,
    Usage,
)
from .sequences.drafts import checked_size, guess_of
from .sequences.slots import common_length
from .sequences.steps import Row
from .sources import check_without_source

__all__ = [
    "DraftOptions",
    "DraftSource",
    "Engine",
    "EngineFigures",
    "Generation",
    "GenerationRequest",
    "ModelDraft",
    "NgramDraft",
    "Piece",
    "QueueFull",
    "SamplingOptions",
    "SlotBusy",
    "SlotState",
    "TokenLogprob",
    "Usage",
]


Array = np.ndarray[Any, Any]
_COUNTED = ("tokens", "prompt_tokens", "cached_tokens", "requests", "ended", "guessed", "accepted", "steps")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Counts since the start, and the state now.

    tokens         new tokens of all answers.
    prompt_tokens  of all prompts that were begun; cached_tokens: those of them that were in a cache.
    requests       all that were submitted; `ended`: those that are done.
    guessed, accepted  tokens of a draft that were checked, and those of them that were right.
    steps          of the model: one token for some slots, or a piece of a prompt.
    busy_ns        time in steps.
    """

    tokens: int
    prompt_tokens: int
    cached_tokens: int
    requests: int
    ended: int
    guessed: int
    accepted: int
    steps: int
    busy_ns: int
    queue_length: int
    busy_slots: int
    slots: int


class Engine:
    """Answers requests with one model, by a thread of its own.

    slots       texts that are generated at once.
    context     positions of each slot; default: the model's capacity.
    queue       most requests that wait for a slot.
    chunk       most tokens of a prompt that are read between two tokens of the others.
    draft       guesses of next tokens, of which several are checked in one step: NgramDraft(), or ModelDraft(model).
    cache_type  of keys and values, as for Model; default: the type of the model's own cache.

    Raises:
        SettingError: a value outside its range, or an encoder; SettingError is a ValueError.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int = 4,
        context: int | None = None,
        queue: int = 64,
        chunk: int = 256,
        cache_type: CacheTypes | None = None,
        draft: DraftSource | None = None,
    ) -> None:
        if not model.architecture.is_causal:
            raise SettingError(
                f"Engine: {model.config.name} is an encoder, which writes no text. Use Model.embed, or a causal model."
            )
        check_without_source(model.architecture, "Engine")
        context = model.capacity if context is None else context
        if not all(is_whole(size, 1) for size in (slots, context, queue, chunk)):
            raise SettingError(
                f"Engine: slots={slots}, context={context}, queue={queue}, chunk={chunk}: must be integers >= 1."
            )
        if context > model.capacity:
            raise SettingError(
                f"Engine: context={context} is more than the model's capacity of {model.capacity}. Build the model "
                "with a larger capacity."
            )
        self.model, self.context, self.queue_limit = model, context, queue
        self._steps = Steps(model, slots, context, min(chunk, context), cache_type or model.cache_type)
        self._slots = [Slot(number) for number in range(slots)]
        self._draft = draft
        self._checked = 0 if draft is None else checked_size(draft)
        if draft is not None:
            if self._steps.has_states:
                raise SettingError(
                    f"Engine: {model.config.name} has a state for each text, which cannot go back behind a wrong "
                    "guess. Leave out the draft."
                )
            draft.open(model, slots, context)
        self._waiting: deque[Task] = deque()
        self._calls: deque[tuple[Slot, Callable[[Slot], int], Future[int]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._error: BaseException | None = None
        self._turn = 0  # of prompts: the slot after the one that read last
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._busy_ns = 0
        self._thread = threading.Thread(target=self._work, name="kernmill engine", daemon=True)
        self._thread.start()

    # --- for every thread
    def submit(self, request: GenerationRequest, on_piece: Callable[[Piece | None], None] | None = None) -> Generation:
        """Put a request into the queue, and return its text, which grows. `on_piece`: see Generation.

        Raises:
            QueueFull: as many requests wait as the queue takes.
            SettingError: a prompt without tokens or longer than the context, a wrong stop string.
            IndexRangeError: an unknown token id; both are ValueErrors.
            KernmillError: the engine is closed, or a step of it failed.
        """
        tokens = self._prompt_of(request)
        stop_strings(request.stop, "Engine.submit")
        if request.keep is not None:
            self._steps.prepare_shift()
        generation = Generation(Usage(len(tokens)), on_piece, self._wake)
        task = Task(request, generation, self.model.tokenizer, self.context)
        with self._changed:
            self._check_open()
            if len(self._waiting) >= self.queue_limit:
                raise QueueFull(
                    f"Engine: {self.queue_limit} requests wait already. Try again later, or build the engine with a "
                    "larger queue."
                )
            self._counts["requests"] += 1
            self._waiting.append(task)
            self._changed.notify_all()
        return generation

    def warm_up(self) -> None:
        """Build the graphs of all steps, before the first request; else each is built when first needed, while all
        texts wait."""
        self._steps.warm_up()
        if self._draft is not None and self.context >= self._checked:
            self._steps.check(0, self.context - self._checked, [0], self._checked)

    def check_shift(self, keep: int) -> None:
        """Check that requests may have this `keep`.

        Raises:
            SettingError: the keys of the model cannot move, or the context has no room behind the kept tokens.
        """
        self._steps.prepare_shift()
        kept_tokens(keep, 0, self.context)

    def slots(self) -> list[SlotState]:
        """Return the state of each slot."""
        with self._changed:
            return [slot.state() for slot in self._slots]

    def save_slot(self, number: int, path: str) -> int:
        """Write the text that a slot holds, with its keys and values, into a file; return its number of tokens.

        Raises:
            SlotBusy: it is being generated. SettingError: an unknown slot, or one without tokens.
            FormatError: the file cannot be written.
        """
        return self._call_with(number, lambda slot: self._steps.write(slot.number, slot.seen, path))

    def restore_slot(self, number: int, path: str) -> int:
        """Put the text of a file into a slot: a prompt that begins with it is not read again. Returns its tokens.

        Raises:
            SlotBusy: the slot has a text. SettingError: an unknown slot, or a text longer than its context.
            FormatError: the file is damaged, or of another model, adapter or cache type.
        """

        def restored(slot: Slot) -> int:
            slot.seen, slot.change = self._steps.restore(slot.number, path), self.model.changes
            slot.used = self._counts["steps"]
            return len(slot.seen)

        return self._call_with(number, restored)

    def erase_slot(self, number: int) -> int:
        """Forget the text that a slot holds; return its number of tokens. Raises SlotBusy, or SettingError."""

        def erased(slot: Slot) -> int:
            count, slot.seen = len(slot.seen), []
            self._steps.forget(slot.number)
            return count

        return self._call_with(number, erased)

    def figures(self) -> EngineFigures:
        """Return counts since the start, and the state now."""
        with self._changed:
            busy = sum(slot.task is not None for slot in self._slots)
            return EngineFigures(
                **self._counts, busy_ns=self._busy_ns, queue_length=len(self._waiting), busy_slots=busy,
                slots=len(self._slots),
            )  # fmt: skip

    @property
    def has_failed(self) -> bool:
        """True after a step of the model failed: the engine takes no more requests."""
        return self._error is not None

    def close(self, wait_s: float = 0) -> None:
        """End the engine: waiting requests are cancelled at once, running ones after this time. Units: seconds.

        `on_piece` may call it: then running requests are cancelled at once, and it returns before they have ended.
        """
        is_inside = threading.current_thread() is self._thread
        with self._changed:
            self._is_closing = True
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify_all()
        for task in waiting:
            task.generation.end("cancelled")
        if not is_inside:
            self._thread.join(wait_s)
        for slot in self._slots:
            running = slot.task  # which the engine's thread may end meanwhile
            if running is not None:
                running.generation.cancel()
        if not is_inside:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_with(self, number: int, function: Callable[[Slot], int]) -> int:
        """Let the engine's thread call a function of an idle slot, and wait for its result."""
        if not 0 <= number < len(self._slots):
            raise SettingError(f"Engine: there is no slot {number}. Slots are 0 to {len(self._slots) - 1}.")
        result = Future[int]()
        with self._changed:
            self._check_open()
            self._calls.append((self._slots[number], function, result))
            self._changed.notify_all()
        return result.result()

    def _check_open(self) -> None:
        if self._error is not None:
            raise KernmillError(
                f"Engine: a step of the model failed: {self._error} Make another Engine for the model."
            ) from self._error
        if self._is_closing or not self._thread.is_alive():
            raise KernmillError("Engine: it is closed. Make another Engine for the model.")

    def _prompt_of(self, request: GenerationRequest) -> list[int]:
        try:
            tokens = [*map(index, request.tokens)]
        except TypeError:
            raise SettingError(
                "Engine.submit: token ids must be integers. Encode text with tokenizer.encode()."
            ) from None
        if not tokens:
            raise SettingError("Engine.submit: no tokens. Give at least one, such as the begin token.")
        if len(tokens) > self.context:
            raise SettingError(
                f"Engine.submit: the prompt has {len(tokens)} tokens, and the context {self.context}. Shorten it, or "
                "build the engine with a larger context."
            )
        most = self.model.architecture.vocabulary
        bad = next((token for token in tokens if not 0 <= token < most), None)
        if bad is not None:
            raise IndexRangeError(f"Engine.submit: token id {bad} is unknown. Ids are 0 to {most - 1}.")
        return tokens

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the engine's thread
    def _work(self) -> None:
        try:
            while self._has_work():
                self._make_calls()
                self._begin()
                self._make_tokens()
                self._read_piece()
        except BaseException as error:
            self._fail(error)
        self._make_calls()

    def _make_calls(self) -> None:
        """Call what other threads want of slots."""
        while self._calls:
            slot, function, result = self._calls.popleft()
            try:
                if slot.task is not None:
                    raise SlotBusy(f"Engine: slot {slot.number} has a text that is being generated. Try again later.")
                self._forget_changed([slot])
                result.set_result(function(slot))
            except Exception as error:
                result.set_exception(error)

    def _has_work(self) -> bool:
        """Wait for work; False: the engine is to end."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._waiting or self._calls or any(slot.task is not None for slot in self._slots):
                    return True
                if self._is_closing:
                    return False
                self._changed.wait()

    def _drop_cancelled(self) -> None:
        for task in [task for task in self._waiting if task.generation.is_cancelled]:
            self._waiting.remove(task)
            self._counts["ended"] += 1
            task.generation.end("cancelled")
        for slot in self._slots:
            if slot.task is not None and slot.task.generation.is_cancelled:
                slot.task.finish("cancelled")
                self._free(slot)

    def _free(self, slot: Slot) -> None:
        slot.seen = [*slot.exact]
        slot.task = None
        self._counts["ended"] += 1

    def _begin(self) -> None:
        """Give waiting requests the free slots, each the one that holds most of its prompt."""
        with self._changed:
            while self._waiting and (free := [slot for slot in self._slots if slot.task is None]):
                task = self._waiting.popleft()
                if task.limit <= 0:
                    self._counts["ended"] += 1
                    task.generation.end("length")
                    continue
                self._forget_changed(free)
                slot = max(free, key=lambda slot: (common_length(slot.seen, task.ids), -slot.used))
                # the last token is computed again: its logits are needed
                same = min(common_length(slot.seen, task.ids), len(task.ids) - 1)
                same = self._steps.rewound(slot.number, len(slot.seen), same)
                same = self._shared_prefix(slot, task, same)
                slot.seen, slot.task, slot.used = task.ids[:same], task, self._counts["steps"]
                if self._draft is not None:
                    self._draft.begin(slot.number)
                task.generation.usage = Usage(task.prompt_tokens, same)
                self._counts["prompt_tokens"] += task.prompt_tokens
                self._counts["cached_tokens"] += same

    def _shared_prefix(self, slot: Slot, task: Task, same: int) -> int:
        """Copy the tokens that a slot lacks of a prompt from the slot that holds most of it, which may be busy.

        Returns how many tokens of the prompt the slot holds then. A state is that of the last token only, so a model
        with states copies nothing.
        """
        if self._steps.has_states:
            return same
        current = [one for one in self._slots if one is not slot and one.change == self.model.changes]
        longest = max(current, key=lambda one: common_length(one.exact, task.ids), default=None)
        if longest is None:
            return same
        most = min(common_length(longest.exact, task.ids), len(task.ids) - 1)
        if most <= same:
            return same
        self._steps.copy_prefix(longest.number, slot.number, same, most)
        return most

    def _forget_changed(self, free: Sequence[Slot]) -> None:
        """Forget what slots hold from before the scales of adapters changed."""
        for slot in free:
            if slot.change != self.model.changes:
                slot.seen, slot.change = [], self.model.changes
                self._steps.forget(slot.number)

    def _make_tokens(self) -> None:
        """Compute one token for every slot that is not in the middle of a long prompt."""
        for slot in self._slots:
            self._shift_full(slot)
        slots = [
            slot for slot in self._slots if slot.left and self._piece_size(slot) == 1 and not self._check_guess(slot)
        ]
        if not slots:
            return
        rows = []
        for slot in slots:
            assert slot.task is not None
            if slot.left == 1 and not slot.task.made:
                self._steps.keep(slot.number, len(slot.seen))
            rows.append(Row(slot.number, len(slot.seen), slot.task.ids[len(slot.seen)]))
        start = time.perf_counter_ns()
        logits = self._steps.next_tokens(rows)
        self._stepped(start)
        # all at once: readers that wake up between two tokens would take turns with this thread
        held = [slot.task.generation for slot in slots if slot.task is not None]
        for generation in held:
            generation.hold()
        try:
            for slot, row, scores in zip(slots, rows, logits, strict=True):
                slot.seen.append(row.token)
                self._advance(slot, scores)
        finally:
            for generation in held:
                generation.release()

    def _shift_full(self, slot: Slot) -> None:
        """Drop tokens of a text that fills its context, if its request has `keep`."""
        task = slot.task
        if task is None or task.keep is None or len(slot.seen) < self.context:
            return
        drop = dropped_tokens(self.context, task.keep)
        self._steps.shift(slot.number, task.keep, drop)
        for ids in (slot.seen, task.ids):
            del ids[task.keep : task.keep + drop]
        task.dropped += drop
        if self._draft is not None:
            self._draft.begin(slot.number)

    def _check_guess(self, slot: Slot) -> bool:
        """Compute the next token of a slot together with guesses at those after it. False: there is no guess."""
        task, first = slot.task, len(slot.seen)
        if self._draft is None or task is None or slot.left > 1 or self.context - first < self._checked:
            return False
        guess = guess_of(self._draft, slot.number, task.ids, task.limit - task.made - 1)
        if not guess:
            return False
        ids = [task.ids[first], *guess]
        start = time.perf_counter_ns()
        logits = self._steps.check(slot.number, first, ids, self._checked)
        self._stepped(start)
        self._counts["guessed"] += len(guess)
        for position, token in enumerate(ids):
            slot.seen.append(token)
            self._advance(slot, logits[position])
            if slot.task is None or position == len(guess) or task.ids[-1] != guess[position]:
                break
            self._counts["accepted"] += 1
        return True

    def _read_piece(self) -> None:
        """Compute a piece of the prompt of the slot whose turn it is."""
        count = len(self._slots)
        turns = (self._slots[(self._turn + n) % count] for n in range(count))
        slot = next((slot for slot in turns if slot.left and self._piece_size(slot) > 1), None)
        if slot is None or slot.task is None:
            return
        self._turn = slot.number + 1
        size, first = self._piece_size(slot), len(slot.seen)
        ids = slot.task.ids[first : min(first + size, len(slot.task.ids) - self._steps.apart)]
        start = time.perf_counter_ns()
        logits = self._steps.read(slot.number, first, ids, size)
        self._stepped(start)
        slot.seen += ids
        self._advance(slot, logits)

    def _piece_size(self, slot: Slot) -> int:
        """The tokens of the next piece of a prompt; 1 where a larger one would go past the end of the cache."""
        return self._steps.piece_size(slot.left, self.context - len(slot.seen))

    def _stepped(self, start: int) -> None:
        self._busy_ns += time.perf_counter_ns() - start
        self._counts["steps"] += 1

    def _advance(self, slot: Slot, logits: Array) -> None:
        """After a step: choose a token if the prompt has been read, and free the slot if the text has ended."""
        task = slot.task
        slot.used = self._counts["steps"]
        if task is None or slot.left:
            return
        try:
            self._counts["tokens"] += task.take(logits)
        except Exception as error:  # of this text: the others go on
            task.generation.end("error", error)
        if task.has_ended:
            with self._changed:
                self._free(slot)

    def _fail(self, error: BaseException) -> None:
        """End all texts with an error, and take no more requests."""
        with self._changed:
            self._is_closing, self._error = True, error
            tasks = [*self._waiting, *(slot.task for slot in self._slots if slot.task is not None)]
            self._waiting.clear()
            for slot in self._slots:
                slot.task = None
        for task in tasks:
            task.generation.end("error", error)
