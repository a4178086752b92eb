"""Bodies of requests: typed, with limits, as OpenAI and llama.cpp name their fields.

Unknown fields are ignored, as clients send many that change nothing. A field that would change the answer and is not
supported is an error that names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..llm.sampling import SamplingOptions
from .errors import RequestError, invalid, unsupported

__all__ = [
    "ChatRequest", "CompletionRequest", "DetokenizeRequest", "EmbeddingRequest", "LlamaRequest", "RerankRequest",
    "ResponsesRequest", "SamplingFields", "SlotRequest", "TemplateRequest", "TokenizeRequest", "decoded",
]  # fmt: skip

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
MAX_BIASES = 1_000
MAX_TOOLS = 256
MAX_NESTING = 64
MAX_TOP = 20  # alternatives of a token with log probabilities
MAX_SCHEMA_BYTES = 1 << 16
MAX_INPUTS = 2048  # texts of one request for embeddings, as OpenAI

_Factor = Annotated[float, Meta(ge=0, le=100)]
_Part = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Count = Annotated[int, Meta(ge=-1, le=1 << 31)]
_Stops = str | Annotated[list[str], Meta(max_length=MAX_STOPS)]
_Number = Annotated[float, Meta(ge=-1e6, le=1e6)]
_Grammar = Annotated[str, Meta(max_length=MAX_SCHEMA_BYTES)]
_Ids = list[int]


_OTHER_NAMES = {"max_tokens": "n_predict", "repeat_penalty": "repetition_penalty"}
_FIELDS = {"repeat_last": "repeat_last_n"}  # fields of SamplingOptions with another name here


def _limited(given: int | None, default: int | None) -> int | None:
    """The limit of a field; None: no limit."""
    return default if given is None else None if given < 0 else given


class _Fields(msgspec.Struct, kw_only=True):
    """A body. Fields with null are as good as absent."""

    def check(self) -> None:
        """Check the values that a type cannot say.

        Raises:
            RequestError: a value that is not valid or not supported.
        """


class StreamOptions(_Fields, kw_only=True):
    """stream_options."""

    include_usage: bool | None = None


class StructuredOutputs(_Fields, kw_only=True):
    """structured_outputs, as vLLM names what a text must follow."""

    json: dict[str, Any] | None = None
    regex: _Grammar | None = None
    choice: list[str] | None = None
    grammar: _Grammar | None = None


class SamplingFields(_Fields, kw_only=True):
    """Fields of all requests that generate text."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: _Count | None = None
    stop: _Stops | None = None
    temperature: _Factor | None = None
    top_p: _Part | None = None
    top_k: _Count | None = None
    min_p: _Part | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    repeat_last_n: _Count | None = None
    logit_bias: dict[str, float] | list[list[Any]] | None = None
    typical_p: _Part | None = None
    top_n_sigma: _Number | None = None
    xtc_probability: _Part | None = None
    xtc_threshold: _Part | None = None
    dynatemp_range: _Factor | None = None
    dynatemp_exponent: _Factor | None = None
    dry_multiplier: _Factor | None = None
    dry_base: _Factor | None = None
    dry_allowed_length: _Count | None = None
    dry_penalty_last_n: _Count | None = None
    dry_sequence_breakers: Annotated[list[str], Meta(max_length=MAX_STOPS)] | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: _Factor | None = None
    mirostat_eta: _Part | None = None
    samplers: Annotated[list[str], Meta(max_length=64)] | None = None
    response_format: dict[str, Any] | None = None
    grammar: _Grammar | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: _Grammar | None = None
    guided_choice: list[str] | None = None
    guided_grammar: _Grammar | None = None
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: bool | None = None
    timings_per_token: bool | None = None
    # known, and without effect on the answer: cache_prompt, user, store, metadata, service_tier, ..: not read
    n_predict: _Count | None = None  # llama-server's name of max_tokens
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None  # vLLM's name of repeat_penalty
    # known, and not supported: None or a neutral value
    best_of: Any = None
    suffix: Any = None
    n_discard: Any = None
    lora: Any = None
    min_tokens: Any = None
    stop_token_ids: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    include_stop_str_in_output: Any = None
    length_penalty: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    t_max_predict_ms: Any = None
    min_keep: Any = None
    n_indent: Any = None
    verbosity: Any = None
    post_sampling_probs: Any = None

    def check(self) -> None:
        """Refuse what would change the answer and is not supported."""
        neutral: dict[str, Any] = {
            "suffix": "",
            "best_of": self.n or 1,
            "n_discard": 0,
            "lora": [],
            "min_tokens": 0,
            "stop_token_ids": [],
            "bad_words": [],
            "allowed_token_ids": [],
            "include_stop_str_in_output": False,
            "length_penalty": 1.0,
            "use_beam_search": False,
            "prompt_logprobs": 0,
            "truncate_prompt_tokens": -1,
            "t_max_predict_ms": 0,
            "min_keep": 0,
            "n_indent": 0,
            "verbosity": "medium",
            "post_sampling_probs": False,
        }
        for name, value in neutral.items():
            given = getattr(self, name)
            if given is not None and given != value:
                raise unsupported(name)
        for name, other in _OTHER_NAMES.items():
            given = getattr(self, other)
            if given is not None and getattr(self, name) not in (None, given):
                raise invalid(other, f"it is another name of {name}, which has another value. Give one.")
            if given is not None:
                setattr(self, name, given)
        self.stops()
        self.form()

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        found = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in found:
            if not text or len(text) > MAX_STOP_CHARACTERS:
                raise invalid("stop", f"each string must have 1 to {MAX_STOP_CHARACTERS} characters.")
        return found

    def form(self) -> dict[str, Any] | None:
        """Return what the text must follow, as a response_format, whatever field says it; None: nothing."""
        found = self._forms()
        if len(found) > 1:
            raise invalid(min(found), f"{' and '.join(sorted(found))} are forms of the text. Give one.")
        return next(iter(found.values()), None)

    def form_field(self) -> str:
        """The field that says what the text must follow."""
        return next(iter(self._forms()), "response_format")

    def _forms(self) -> dict[str, dict[str, Any]]:
        """The forms of the text by their fields."""
        found: dict[str, dict[str, Any]] = {}
        apart = self.structured_outputs or StructuredOutputs()
        named = {
            "json_schema": ("json", self.json_schema), "guided_json": ("json", self.guided_json),
            "grammar": ("grammar", self.grammar), "guided_grammar": ("grammar", self.guided_grammar),
            "guided_regex": ("regex", self.guided_regex), "guided_choice": ("choice", self.guided_choice),
        }  # fmt: skip
        named |= {f"structured_outputs.{kind}": (kind, getattr(apart, kind)) for kind in apart.__struct_fields__}
        for name, (kind, value) in named.items():
            if kind == "json" and value is not None:
                found[name] = {"type": "json_schema", "json_schema": {"schema": value}}
            elif value:
                found[name] = {"type": kind, kind: value}
        if self.response_format is not None and self.response_format.get("type") != "text":
            found["response_format"] = self.response_format
        return found

    def limit(self, default: int | None = None) -> int | None:
        """The number of tokens to generate; None: no limit but the context."""
        return _limited(self.max_tokens, default)

    def biases(self) -> dict[int, float]:
        """logit_bias: {"id": bias}, or llama.cpp's [[id, bias]], where false means never."""
        given = self.logit_bias or {}
        pairs = list(given.items()) if isinstance(given, dict) else [tuple(pair) for pair in given]
        if len(pairs) > MAX_BIASES:
            raise invalid("logit_bias", f"at most {MAX_BIASES} entries are allowed.")
        found: dict[int, float] = {}
        for pair in pairs:
            if len(pair) != 2 or not re.fullmatch(r"\d{1,9}", str(pair[0])):
                raise invalid("logit_bias", "must map token ids to numbers.")
            bias = -math.inf if pair[1] is False else pair[1]
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not (-math.inf <= bias <= 1e6):
                raise invalid("logit_bias", "each bias must be a number from -100 to 100.")
            found[int(pair[0])] = -math.inf if bias <= -100 else float(bias)
        return found

    def sampling(self, default: SamplingOptions, never: Collection[int], number: int) -> SamplingOptions:
        """Return the sampling of choice `number`; absent fields have the values of `default`. Tokens of `never` are
        excluded."""
        values = {one.name: getattr(default, one.name) for one in fields(SamplingOptions)}
        for name in values:
            given = getattr(self, _FIELDS.get(name, name))
            if given is not None and name != "logit_bias":
                values[name] = given
        values["seed"] = None if self.seed in (None, -1) else (self.seed + number) % (1 << 63)
        values["logit_bias"] = {**default.logit_bias, **self.biases(), **dict.fromkeys(never, -math.inf)}
        return SamplingOptions(**values)

    @property
    def streams(self) -> bool:
        """True if the client wants server-sent events."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """True if the last event has the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Refuse what would change the answer and is not supported."""
        SamplingFields.check(self)
        for name in ("functions", "function_call"):
            if getattr(self, name):
                raise unsupported(name, "is not supported. Use tools and tool_choice.")
        for name in ("audio", "chat_template", "continue_final_message", "web_search_options"):
            if getattr(self, name) or (name == "web_search_options" and self.web_search_options is not None):
                raise unsupported(name)
        if self.add_generation_prompt is False:
            raise unsupported("add_generation_prompt", "must be true.")
        if self.modalities not in (None, ["text"]):
            raise unsupported("modalities", "must be text.")
        if self.reasoning_format not in (None, "auto", "deepseek", "none"):
            raise unsupported("reasoning_format")
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "needs logprobs: true.")
        check_tools(self.tools or ())

    def limit(self, default: int | None = None) -> int | None:
        """The number of tokens to generate."""
        return _limited(self.max_completion_tokens, SamplingFields.limit(self, default))

    def top(self) -> int | None:
        """Alternatives for each token; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. `prompt` is a text, tokens, or a list of them."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | bool | None = None
    echo: bool | None = None

    def check(self) -> None:
        """Refuse what would change the answer and is not supported."""
        SamplingFields.check(self)
        if self.echo and self.top() is not None:
            raise unsupported("logprobs", "is not supported with echo: tokens of the prompt have none.")

    def prompts(self) -> list[str | _Ids]:
        """The prompts, one for each choice."""
        return inputs_of(self.prompt, "prompt")

    def top(self) -> int | None:
        """Alternatives for each token; None: no log probabilities."""
        return int(self.logprobs) if self.logprobs is not None and self.logprobs is not False else None


class LlamaRequest(CompletionRequest, kw_only=True):
    """POST /completion: llama-server's own form of it."""

    n_probs: Any = None

    def check(self) -> None:
        """Refuse what would change the answer and is not supported."""
        CompletionRequest.check(self)
        for name in ("n_probs", "logprobs", "echo"):
            if getattr(self, name):
                raise unsupported(name, "is not supported here. Use /v1/completions.")


class EmbeddingRequest(_Fields, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None

    def check(self) -> None:
        """Check the values that a type cannot say."""
        if self.encoding_format not in (None, "float", "base64"):
            raise invalid("encoding_format", "must be float or base64.")


class RerankRequest(_Fields, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1, le=MAX_INPUTS)] | None = None
    return_documents: bool | None = None


class TokenizeRequest(_Fields, kw_only=True):
    """POST /tokenize."""

    content: str
    model: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(_Fields, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class TemplateRequest(_Fields, kw_only=True):
    """POST /apply-template."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=4096)]
    model: str | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Check the tools."""
        check_tools(self.tools or ())


class SlotRequest(_Fields, kw_only=True):
    """POST /slots/N."""

    filename: str | None = None
    model: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """POST /v1/responses: what clients use of it without storage."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: _Count | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    truncation: str | None = None
    top_logprobs: int | None = None

    def check(self) -> None:
        """Refuse what needs storage on the server."""
        SamplingFields.check(self)
        for name in ("previous_response_id", "conversation", "background", "prompt", "top_logprobs"):
            if getattr(self, name):
                raise unsupported(name)
        if self.truncation not in (None, "disabled"):
            raise unsupported("truncation", "must be disabled.")

    def limit(self, default: int | None = None) -> int | None:
        """The number of tokens to generate."""
        return _limited(self.max_output_tokens, SamplingFields.limit(self, default))


Body = TypeVar("Body", bound=_Fields)


def decoded(raw: bytes, kind: type[Body]) -> Body:
    """Return the body of a request.

    Raises:
        RequestError: it is not JSON, or a field is not of its type or outside of its range.
    """
    if _depth(raw) > MAX_NESTING:
        raise RequestError(400, f"The body is nested more than {MAX_NESTING} levels deep.", code="invalid_json")
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        param = re.sub(r"^\.", "", path.removesuffix("`")) or None
        if param is None and (missing := re.search(r"required field `(\w+)`", what)) is not None:
            param = missing[1]
        text = f"{param}: {what}." if param else f"{what}."
        raise RequestError(400, text.replace("`", ""), param=param, code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise RequestError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    body.check()
    return body


def _depth(raw: bytes) -> int:
    """The nesting of JSON; brackets in strings are skipped."""
    deepest = level = 0
    for token in _BRACKETS.finditer(raw):
        sign = token[0][:1]
        if sign in b"[{":
            level += 1
            deepest = max(deepest, level)
            if deepest > MAX_NESTING:
                break
        elif sign in b"]}":
            level -= 1
    return deepest


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def inputs_of(value: str | Sequence[Any], name: str) -> list[str | _Ids]:
    """Texts or lists of token ids of a field that may be one of them or a list of them."""
    if isinstance(value, str):
        return [value]
    if not value:
        raise invalid(name, "must not be empty.")
    if len(value) > MAX_INPUTS and not is_ids(value):
        raise invalid(name, f"at most {MAX_INPUTS} entries are allowed.")
    if is_ids(value):
        return [[*map(int, value)]]
    found: list[str | _Ids] = []
    for one in value:
        if not isinstance(one, str) and not (isinstance(one, list) and one and is_ids(one)):
            raise invalid(name, "must be a text, a list of token ids, or a list of these.")
        found.append(one)
    return found


def is_ids(value: Sequence[Any]) -> bool:
    """True for a list of integers."""
    return all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Check that each tool is a function with a name."""
    for index, tool in enumerate(tools):
        name = f"tools[{index}]"
        if tool.get("type", "function") != "function":
            raise unsupported(f"{name}.type", "must be function.")
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"{name}.function", "must have a name.")
        if not re.fullmatch(r"[\w.:-]{1,128}", function["name"]):
            raise invalid(f"{name}.function.name", "must have 1 to 128 letters, digits, or _ . : -.")
        if not isinstance(function.get("parameters", {}) or {}, dict):
            raise invalid(f"{name}.function.parameters", "must be a JSON schema.")
        if not isinstance(function.get("description", "") or "", str):
            raise invalid(f"{name}.function.description", "must be a text.")
