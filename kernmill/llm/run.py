"""`kernmill run MODEL -p PROMPT`: print generated text, hold a conversation, report timings and memory."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

from kernmill import SettingError
from kernmill.runtime import device_list

from .arch.cache import CacheTypes
from .chat import ChatTemplate
from .context_shift import kept_behind
from .drafted import GuessCounts, drafted, open_draft
from .file_weights import arena_for
from .generate import Model
from .generation import stop_strings
from .grammar import Grammar
from .masks import MaskedSampler
from .memory_lines import load_lines, memory_table
from .memory_needs import needing_memory
from .model_file import config_in, naming
from .opening import DEFAULT_CAPACITY, opened_file
from .sampling import Chooser, Sampler
from .saved_state import load_state, save_state
from .sequences import DraftOptions, DraftSource
from .split import SplitOptions
from .tokenizer import Tokenizer

__all__ = ["Options", "Timings", "run"]

LEAST_CAPACITY = 256  # tokens: sizes are this times a power of two, so that few graphs serve all prompts
ENDS = ("/exit", "/quit")  # lines that end a conversation, as Ctrl-D does
FORGET = "/clear"  # a line after which a conversation begins again
MAX_CHARACTERS = 8_000_000  # of a prompt: a million tokens of English have 4 to 5 million


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. `tokens` None: until the text ends. `capacity` None: as needed, 0: the
    trained context. `block`: prompt tokens per batch. `stop`: strings that end the text. `grammar`: the kind of a
    grammar that the text follows, and its source. `adapters`: scales by path. `template`: Jinja source instead of
    the file's. `template_values`: its variables. `state`: a file with the state of an earlier text, which is read if it
    exists, and written at the end, with the answer or without. `draft`: how next tokens are guessed. `keep`: how
    many tokens stay when a full context is shifted, in addition to the begin token, -1: the prompt; None: it ends the
    text. `quantize`: the mix of types that the weights get while they are loaded."""

    prompt: str | None
    chat: bool = False
    system: str = ""
    tokens: int | None = None
    capacity: int | None = None
    cache_type: CacheTypes = "f32"
    shows_prompt: bool = True
    is_single_turn: bool = False
    ignores_end: bool = False
    block: int | None = None
    stop: tuple[str, ...] = ()
    split: SplitOptions | None = None
    grammar: tuple[str, str] | None = None
    adapters: Mapping[str, float] = field(default_factory=dict[str, float])
    template: str | None = None
    template_values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    state: str | None = None
    keeps_answer: bool = False
    writes_state: bool = True
    draft: DraftOptions | None = None
    keep: int | None = None
    quantize: str | None = None


class Timings:
    """Timings, with the words of llama.cpp. Units: ns.

    Building graphs and their kernels is separate from running them: it happens once for each size of a block. The
    user's typing time is not included.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter_ns()
        self.load = self.sampling = self.samples = 0
        self.steps: dict[str, list[int]] = {name: [0, 0] for name in ("prompt eval", "eval")}  # ns, tokens
        self.build = self.builds = self.reused = 0

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Stop the clock."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.start += time.perf_counter_ns() - start

    @contextmanager
    def step(self, model: Model, *, is_prompt: bool) -> Generator[None]:
        """One more token is made."""
        start, besides, computed = time.perf_counter_ns(), self.sampling + model.build_ns, model.computed_tokens
        yield
        tokens = model.computed_tokens - computed
        row = self.steps["prompt eval" if is_prompt else "eval"]
        if tokens:
            row[0] += time.perf_counter_ns() - start - (self.sampling + model.build_ns - besides)
            row[1] += tokens
        self.build, self.builds, self.reused = model.build_ns, model.builds, model.replays

    def lines(self) -> Iterator[str]:
        """The table."""
        yield _line("load time", self.load)
        yield _line("build time", self.build) + f" / {self.builds:5} graphs, graphs reused = {self.reused}"
        yield _line("sampling time", self.sampling, self.samples, "runs")
        for name, (ns, tokens) in self.steps.items():
            yield _line(f"{name} time", ns, tokens, "tokens" if name == "prompt eval" else "runs")
        total = sum(tokens for _, tokens in self.steps.values())
        yield _line("total time", time.perf_counter_ns() - self.start) + f" / {total:5} tokens"


def _line(name: str, ns: int, count: int = 0, unit: str = "") -> str:
    line = f"{name:>16} = {ns / 1e6:11.2f} ms"
    if not count:
        return line
    return (
        f"{line} / {count:5} {unit:6} ({ns / 1e6 / count:9.2f} ms per token, {count / ns * 1e9:9.2f} tokens per second)"
    )


class _TimedSampler(Sampler):
    """A sampler whose time is counted."""

    timings: Timings

    def choose(self, logits: Any, recent: Sequence[int] = ()) -> int:
        """The id of the next token."""
        start = time.perf_counter_ns()
        token = super().choose(logits, recent)
        self.timings.sampling += time.perf_counter_ns() - start
        self.timings.samples += 1
        return token


def run(path: str | os.PathLike[str], options: Options, sampler: Sampler | None = None) -> int:
    """Print the model's text and return the exit status: 130 if Ctrl-C ended it. Timings and memory go to stderr.

    Raises:
        FormatError: the file cannot be read, or has no model that kernmill can run.
        SettingError: a prompt that does not fit the context.
    """
    with needing_memory(path, options.capacity, options.cache_type):
        return _run(_Chat(path, options, sampler or Sampler()))


def _run(session: _Chat) -> int:
    status = 0
    try:
        with naming(session.file):
            session.converse() if session.options.chat else session.complete()
    except KeyboardInterrupt:
        if session.model is None:  # there is nothing to show
            raise
        session.screen.write("\n")
        status = 130
    finally:
        if session.model is not None:
            lines = [*session.timings.lines(), *session.draft_lines()]
            _tell("\n".join(("", *lines, "", *memory_table(session.model))))
    return status


class _Chat:
    """A model and its messages. The model is loaded when the length of the first prompt is known."""

    def __init__(self, path: str | os.PathLike[str], options: Options, sampler: Sampler) -> None:
        self.timings, self.options = Timings(), options
        self.sampler = _TimedSampler(**{one.name: getattr(sampler, one.name) for one in fields(sampler)})
        self.sampler.timings = self.timings
        self.file = opened_file(path, options.quantize)
        self.model: Model | None = None
        self.draft: DraftSource | None = None
        self.guesses = GuessCounts()
        with naming(self.file):
            self.config = config_in(self.file)
            over_ranks = options.split is not None and options.split.over_ranks
            is_on_one = (
                len(device_list()) == 1 and not over_ranks
            )  # then memory is pre-faulted in parallel with the following
            self.arena = arena_for(self.file) if is_on_one else None
            self.tokenizer = Tokenizer(self.file.metadata)
            self.grammar = None if options.grammar is None else Grammar(*options.grammar, self.tokenizer)
        if sampler.dry_multiplier:
            self.sampler.breakers = self.tokenizer.tokens_with(sampler.dry_sequence_breakers)
        if options.ignores_end:
            self.sampler.logit_bias = {**sampler.logit_bias, **dict.fromkeys(self.tokenizer.end_ids, -math.inf)}
        self.screen = _Screen()

    def complete(self) -> None:
        """Generate the continuation of the prompt."""
        prompt = _checked(self.options.prompt or "", "the prompt")
        self.check_length(prompt)
        ids = self.tokenizer.encode(prompt, parse_special=True)
        self.loaded(ids)  # errors are reported before anything is printed
        if self.options.shows_prompt:
            self.screen.write(prompt)
        for piece in self.answer(ids):
            self.screen.write(piece)
        self.screen.write("\n")
        self.keep_state(None if self.options.keeps_answer else len(ids))

    def converse(self) -> None:
        """Hold a conversation: the prompt first if there is one, then lines of stdin until it ends."""
        template = ChatTemplate.of(self.file.metadata, self.tokenizer)
        if self.options.template is not None:
            template = template.with_source(self.options.template)
        elif "tokenizer.chat_template" not in self.file.metadata:
            _tell("The file has no chat template; ChatML is used.")
        system = _checked(self.options.system, "the message of --system")
        messages = [{"role": "system", "content": system}] if system else []
        first = list(messages)
        for said in self.messages():
            if said.strip() == FORGET:
                messages = list(first)
                continue
            asked = [*messages, {"role": "user", "content": said}]
            with _another_chance():
                text = self.reply(template, asked)
                self.keep_state(None)
                messages = [*asked, {"role": "assistant", "content": text}]

    def reply(self, template: ChatTemplate, messages: list[dict[str, str]]) -> str:
        """The answer, which is written while it is made."""
        text = ""
        try:
            for piece in self.answer(self.fitting(template, messages)):
                text += piece
                self.screen.write(piece)
        except KeyboardInterrupt:  # it ends the answer; at the prompt it ends the conversation
            if not self.screen.is_terminal:
                raise
        self.screen.write("\n")
        return text

    def fitting(self, template: ChatTemplate, messages: list[dict[str, str]]) -> list[int]:
        """The tokens of a conversation. The oldest exchanges go until the answer has a quarter of the context."""
        ids = self.encoded(template, messages)
        capacity = self.capacity(len(ids))
        oldest, count = int(bool(self.options.system)), len(messages)
        while len(ids) > capacity * 3 // 4 and len(messages) > oldest + 1:
            del messages[oldest : oldest + 2]  # the user's message, and the answer to it
            ids = self.encoded(template, messages)
        _check_room(len(ids), capacity, self.config.context)
        if gone := (count - len(messages)) // 2:
            _tell(f"The conversation exceeds its context of {capacity} tokens. It continues without the oldest: {gone} "
                  f"{'exchange' if gone == 1 else 'exchanges'}.")  # fmt: skip
        return ids

    def encoded(self, template: ChatTemplate, messages: list[dict[str, str]]) -> list[int]:
        """The tokens of messages."""
        text = template.render(messages, **self.options.template_values)
        self.check_length(text)
        return template.tokens(self.tokenizer, text)

    def check_length(self, text: str) -> None:
        """Check the length before the text is tokenized, which takes gigabytes for long text."""
        context = self.config.context
        capacity = self.capacity(context)
        most = min(MAX_CHARACTERS, capacity * self.tokenizer.longest)
        if len(text) > most:
            raise _MessageError(
                f"run: the prompt has {len(text)} characters, and a context of {capacity} tokens takes at most "
                f"{most}. {_shorter(capacity, context)}"
            )

    def messages(self) -> Iterator[str]:
        """Yield the user's messages, until stdin ends, or a line requests the end."""
        is_first = self.options.prompt is not None
        if self.options.prompt is not None:
            yield _checked(self.options.prompt, "the prompt")
        if is_first and (self.options.is_single_turn or not sys.stdin.isatty()):
            return
        while True:
            said = ""
            try:
                with _another_chance(), self.timings.waiting():
                    said = _typed()
            except EOFError:
                return
            if said.strip() in ENDS:
                return
            if said.strip():
                yield said
                if self.options.is_single_turn:
                    return

    def answer(self, ids: Sequence[int]) -> Iterator[str]:
        """The text after these tokens, piece by piece."""
        model = self.loaded(ids)
        stream, is_prompt, stops = self.tokenizer.stream(), True, stop_strings(self.options.stop, "run")
        sampler: Chooser = self.sampler
        if self.grammar is not None:
            sampler = MaskedSampler(sampler, self.grammar.start(), self.tokenizer.end_ids)
        keep = kept_behind(self.options.keep, ids, self.tokenizer.bos_id)
        if self.draft is None:
            tokens = model.generate(ids, sampler, self.options.tokens, keep=keep)
        else:
            tokens = drafted(model, self.draft, self.guesses, ids, sampler, self.options.tokens, keep)
        while stops.found is None:
            with self.timings.step(model, is_prompt=is_prompt):
                token = next(tokens, None)
            if token is None:
                break
            is_prompt = False
            yield stops.push(stream.push(token))
        yield stops.push(stream.finish()) + stops.finish()
        if stops.found is None and tokens.finish_reason == "context":
            _tell(f"\nThe context of {model.capacity} tokens is full: the text is truncated here.")

    def loaded(self, ids: Sequence[int]) -> Model:
        """The model, with room for the prompt."""
        config, capacity = self.config, self.capacity(len(ids))
        _check_room(len(ids), capacity, config.context)
        if self.model is None:
            if capacity > config.context:
                _tell(
                    f"The context of {capacity} tokens is longer than the {config.context} that the model was "
                    "trained on: the output may be incoherent."
                )
            self.model = Model.from_gguf(
                self.file, arena=self.arena, tokenizer=self.tokenizer, capacity=capacity,
                cache_type=self.options.cache_type, block=self.options.block, wanted=self.options.split,
                adapters=self.options.adapters,
            )  # fmt: skip
            if self.options.state is not None and os.path.exists(self.options.state):
                _tell(f"{load_state(self.model, self.options.state)} tokens are read from {self.options.state}.")
            if self.options.draft is not None:
                self.draft = self.options.draft.opened(capacity)
                open_draft(self.model, self.draft)
            self.timings.load = time.perf_counter_ns() - self.timings.start
            _tell("\n".join(load_lines(self.model, self.file)))
        return self.model

    def draft_lines(self) -> Iterator[str]:
        """How many guesses of a draft were right."""
        if self.draft is not None:
            right, all_of = self.guesses.accepted, self.guesses.guessed
            yield f"{'draft guesses':>16} = {right:11} right of {all_of} ({right / max(1, all_of):.1%})"

    def keep_state(self, tokens: int | None) -> None:
        """Write the state of the text, or of its first tokens, to the file of --prompt-cache."""
        if self.options.state is not None and self.options.writes_state and self.model is not None:
            save_state(self.model, self.options.state, tokens)

    def capacity(self, prompt: int) -> int:
        """Return the current or needed number of tokens in the cache: attention to all of them costs time, used or
        not."""
        context = self.config.context
        if self.model is not None:
            return self.model.capacity
        if self.options.capacity is not None:
            return self.options.capacity or context
        if self.options.chat or self.options.tokens is None:
            return min(context, max(DEFAULT_CAPACITY, prompt))
        wanted, size = prompt + self.options.tokens, LEAST_CAPACITY
        while size < wanted:
            size *= 2
        return min(context, size)


def _tell(text: str) -> None:
    """Print a message to stderr; if that is full or closed, the text continues without it."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def _checked(text: str, what: str) -> str:
    """Text that came as bytes from outside."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_utf8(what) from None
    return text


def _typed() -> str:
    """Return the user's next line."""
    try:
        lines = [input("\n> " if sys.stdin.isatty() else "")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input())
        return _checked("\n".join(lines), "a line of stdin")
    except UnicodeDecodeError:
        raise _not_utf8("a line of stdin") from None


class _MessageError(SettingError):
    """An error in one message, which does not affect the next."""


@contextmanager
def _another_chance() -> Generator[None]:
    """Report an error to an interactive user and continue; piped input ends instead, so that no answer is silently
    missing."""
    try:
        yield
    except _MessageError as error:
        if not sys.stdin.isatty():
            raise
        _tell(f"kernmill: {error}")


def _not_utf8(what: str) -> _MessageError:
    return _MessageError(f"run: {what} is not in UTF-8. Convert it, for example with: iconv -f LATIN1 -t UTF-8.")


def _check_room(prompt: int, capacity: int, context: int) -> None:
    if prompt > capacity:
        raise _MessageError(
            f"run: the prompt has {prompt} tokens, and the context {capacity}. {_shorter(capacity, context)}"
        )


def _shorter(capacity: int, context: int) -> str:
    more = ", or pass a larger context with -c" if capacity < context else ""
    return f"Shorten it{more} (the model was trained on {context})."


class _Screen:
    """stdout for generated text, which may contain terminal control sequences, or characters that stdout cannot
    encode."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.encoding = sys.stdout.encoding or "utf-8"

    def write(self, text: str) -> None:
        """Now, not when a line is full."""
        if self.is_terminal:
            text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
        sys.stdout.write(text.encode(self.encoding, "replace").decode(self.encoding))
        sys.stdout.flush()
