"""The application: paths and what they do."""

from __future__ import annotations

import asyncio
import base64
import functools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

import kernmill
from kernmill.ir import KernmillError

from ..llm import Model
from ..llm.engine import QueueFull, SlotState
from ..llm.talk import LLM, Prompt, Reply, TextOptions
from . import page
from .errors import RequestError, invalid
from .jobs import Job, JsonAnswer, StreamAnswer
from .limits import ServerOptions
from .metrics import Metrics
from .protection import App, Protection, Receive, Scope, Send, answer_error, read_body
from .requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    LlamaRequest,
    RerankRequest,
    ResponsesRequest,
    SamplingFields,
    SlotRequest,
    TemplateRequest,
    TokenizeRequest,
    decoded,
    inputs_of,
)  # fmt: skip
from .responses import ResponsesShape, chat_tools, messages_of, response_format_of
from .shapes import ChatShape, CompletionShape, LlamaShape, Shape
from .slot_files import act_on_slot
from .store import Loader, ModelEntry, ModelStore

__all__ = ["make_app"]

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(
    paths: Mapping[str, str], options: ServerOptions, load: Loader, on_failure: Callable[[], None] | None = None
) -> App:
    """Return the server for models by name as an ASGI application. `load` opens a file.

    on_failure  called if the only model cannot be loaded at the start.
    """
    server = _Server(ModelStore(paths, options, load), options, on_failure)
    inner = Starlette(
        routes=server.routes(), lifespan=server.lifespan,
        exception_handlers={
            RequestError: _on_request_error, HTTPException: _on_http_error, ConnectionResetError: _on_gone,
            Exception: _on_failure,
        },
    )  # fmt: skip
    return Protection(server.counted(inner), options)


def load_model(path: str, options: ServerOptions) -> LLM:
    """Open a model as the options say."""
    context: dict[str, Any] = {"n_ctx": 0} if options.context == 0 else {"capacity": options.context}
    model = Model.from_gguf(
        path, cache_type=options.cache_type, wanted=options.split, adapters=options.adapters, **context
    )
    llm = LLM(
        model, template=options.template, sampling=options.sampling, slots=options.slots, queue=options.queue,
        chunk=options.chunk, draft=options.draft,
    )  # fmt: skip
    if options.form is not None:
        llm.prompts.prompt([], options.form)  # a mistake in it is reported now
    if options.keep is not None and llm.is_causal:
        llm.engine.check_shift(options.keep)
    if options.warms_up and llm.is_causal:
        llm.engine.warm_up()
    return llm


# --- errors ----------------------------------------------------------------------------------------------------------
class _ErrorAnswer(Response):
    def __init__(self, error: RequestError) -> None:
        super().__init__(status_code=error.status)
        self._error = error

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await answer_error(send, self._error)


async def _on_request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _ErrorAnswer(error)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    text = {404: "There is no such path.", 405: "The path does not take this method."}.get(status, error.detail)
    return _ErrorAnswer(RequestError(status, text, headers=error.headers))


async def _on_gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_failure(_: Request, error: Exception) -> Response:
    return _ErrorAnswer(RequestError(500, "The server failed. Its log has the reason."))


_SHOWN = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")


class _Server:
    """The paths, on one store of models."""

    def __init__(self, store: ModelStore, options: ServerOptions, on_failure: Callable[[], None] | None) -> None:
        self._store, self._options, self._metrics = store, options, Metrics()
        self._on_failure = on_failure

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        """Load the first model while the server already answers, and release all at the end."""
        first = asyncio.create_task(self._load_first())
        idle = asyncio.create_task(self._store.drop_idle())
        try:
            yield
        finally:
            idle.cancel()
            await asyncio.wait([first])
            await self._store.close(0)

    async def _load_first(self) -> None:
        try:
            await self._store.load(self._store.first)
        except RequestError:  # it is in the log, and /health says so
            if self._on_failure is not None and len(self._store.entries) == 1:
                self._on_failure()

    def counted(self, app: App) -> App:
        """Count the requests of known paths by status."""
        known = {route.path for route in self._routes() if isinstance(route, Route)}

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            path = scope["path"].removeprefix(self._options.api_prefix)
            path = path if path in known else "other"

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self._metrics.requests[path, message["status"]] += 1
                await send(message)

            await app(scope, receive, sending)

        return counting

    def routes(self) -> list[BaseRoute]:
        """The paths, below the prefix."""
        prefix = self._options.api_prefix
        return [Mount(prefix, routes=self._routes())] if prefix else self._routes()

    def _routes(self) -> list[BaseRoute]:
        get: dict[str, Any] = {
            "/health": self.health, "/v1/health": self.health, "/v1/models": self.models, "/models": self.models,
            "/v1/models/{name:path}": self.model, "/props": self.props,
        }  # fmt: skip
        if self._options.has_page:
            get["/"] = self.page
        if self._options.shows_slots:
            get["/slots"] = self.slots
        if self._options.shows_metrics:
            get["/metrics"] = self.metrics
        post: dict[str, Any] = {
            "/v1/chat/completions": self.chat, "/chat/completions": self.chat, "/v1/completions": self.completions,
            "/completions": self.completions, "/completion": self.completion,
            "/v1/embeddings": self.embeddings, "/embeddings": self.embeddings,
            "/v1/responses": self.responses, "/v1/rerank": self.rerank, "/rerank": self.rerank,
            "/v1/reranking": self.rerank, "/reranking": self.rerank,
            "/tokenize": self.tokenize, "/detokenize": self.detokenize, "/apply-template": self.apply_template,
        }  # fmt: skip
        if self._options.shows_slots:
            post["/slots/{number:int}"] = self.slot_action
        return [
            *(Route(path, handler, methods=["GET"]) for path, handler in get.items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in post.items()),
        ]

    # --- about the server
    async def health(self, _: Request) -> Answer:
        """200 when the first model can answer, 503 while it loads."""
        entry = self._store.first
        if entry.state == "failed":
            raise RequestError(503, "The model failed, or cannot be loaded. See the server's log.", code="failed")
        if entry.state == "loading":
            raise RequestError(503, "The model is loading.", code="loading", headers={"Retry-After": "1"})
        return JsonAnswer({"status": "ok"})

    async def models(self, _: Request) -> Answer:
        """All models."""
        return JsonAnswer({"object": "list", "data": [*map(_about, self._store.entries.values())]})

    async def model(self, request: Request) -> Answer:
        """One model."""
        name = request.path_params["name"]
        if name not in self._store.entries:
            raise RequestError(404, f"There is no model {name[:100]!r}.", param="model", code="model_not_found")
        return JsonAnswer(_about(self._store.entries[name]))

    async def page(self, _: Request) -> Answer:
        """The page to chat."""
        return Response(page.html(), media_type="text/html", headers={"content-security-policy": page.policy()})

    async def props(self, request: Request) -> Answer:
        """The settings that tools of llama.cpp read."""
        entry = await self._store.ready(request.query_params.get("model"))
        with entry.used() as llm:
            tokenizer = llm.tokenizer
            names = ["" if i is None else tokenizer.tokens[i] for i in (tokenizer.bos_id, tokenizer.eos_id)]
            settings = {name: getattr(llm.sampling, name) for name in _SHOWN}
            return JsonAnswer({
                "default_generation_settings": {"n_ctx": llm.context, "params": settings},
                "total_slots": self._options.slots, "model_alias": entry.name,
                "chat_template": llm.prompts.template.source, "bos_token": names[0], "eos_token": names[1],
                "modalities": {"vision": False, "audio": False}, "build_info": f"kernmill {kernmill.__version__}",
                "is_sleeping": False,
            })  # fmt: skip

    async def slots(self, _: Request) -> Answer:
        """The state of each slot, without texts."""
        found: list[dict[str, Any]] = []
        for entry in self._store.entries.values():
            if entry.llm is not None and entry.llm.is_causal:
                found += [_slot(slot, entry) for slot in entry.llm.engine.slots()]
        return JsonAnswer(found)

    async def slot_action(self, request: Request) -> Answer:
        """Save, restore or erase the text of a slot."""
        body = decoded(await read_body(request.receive, self._options) or b"{}", SlotRequest)
        entry = await self._store.ready(body.model or request.query_params.get("model"))
        with entry.used() as llm:
            action = request.query_params.get("action", "")
            number = request.path_params["number"]
            folder = self._options.slot_folder
            return JsonAnswer(await _computed(act_on_slot, llm.engine, number, action, body.filename, folder))

    async def metrics(self, _: Request) -> Answer:
        """Counters for Prometheus."""
        entries = self._store.entries.values()
        gauges: dict[str, tuple[str, float]] = {}
        for entry in entries:
            for name, (meaning, value) in (_figures(entry.llm) if entry.llm is not None else {}).items():
                gauges[name] = (meaning, gauges.get(name, ("", 0.0))[1] + value)
        text = self._metrics.text(gauges, {entry.name: entry.llm is not None for entry in entries})
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # --- texts
    async def chat(self, request: Request) -> Answer:
        """The next message of a conversation."""
        body = await self._body(request, ChatRequest)
        self._check_choices(body)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("messages", body.form_field()):
            values = {**self._options.template_values, **(body.chat_template_kwargs or {})}
            if body.reasoning_effort is not None:
                values["reasoning_effort"] = body.reasoning_effort
            prompt = await _computed(
                llm.prompts.conversation, body.messages, tools=body.tools or (), tool_choice=body.tool_choice,
                response_format=self._form_of(body.form(), body.tools), template_values=values,
                splits_reasoning=(body.reasoning_format or self._options.reasoning_format) != "none",
            )  # fmt: skip
            options = _options(llm, body, body.top(), self._options)
            shape = ChatShape(entry.name, llm.tokenizer, wants_usage=body.wants_usage)
            return await self._answer(request, entry, [prompt] * (body.n or 1), options, shape, body)

    async def completions(self, request: Request) -> Answer:
        """Texts that follow prompts."""
        body: CompletionRequest = await self._body(request, CompletionRequest)

        def shape(entry: ModelEntry, llm: LLM, texts: Sequence[str]) -> Shape:
            echoes = [text if body.echo else "" for text in texts]
            return CompletionShape(entry.name, llm.tokenizer, wants_usage=body.wants_usage, echoes=echoes)

        return await self._continued(request, body, shape)

    async def completion(self, request: Request) -> Answer:
        """The same in llama-server's own form."""
        body = await self._body(request, LlamaRequest)
        return await self._continued(request, body, lambda entry, _, texts: LlamaShape(entry.name, texts))

    async def _continued(
        self, request: Request, body: CompletionRequest, shape: Callable[[ModelEntry, LLM, Sequence[str]], Shape]
    ) -> Answer:
        """Texts that follow prompts. `shape` makes their form from the texts of the prompts."""
        self._check_choices(body)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("prompt", body.form_field()):
            given = body.prompts()
            if len(given) * (body.n or 1) > self._options.queue:
                raise invalid("prompt", f"at most {self._options.queue} answers at once are allowed.")
            prompts: list[Prompt] = []
            for text in given:
                prompt = await _computed(llm.prompts.prompt, text, self._form_of(body.form()))
                prompts += [prompt] * (body.n or 1)
            texts = [one if isinstance(one, str) else await _computed(llm.tokenizer.decode, one) for one in given]
            made = shape(entry, llm, [text for text in texts for _ in range(body.n or 1)])
            options = _options(llm, body, body.top(), self._options)
            return await self._answer(request, entry, prompts, options, made, body)

    def _form_of(self, given: Mapping[str, Any] | None, tools: Sequence[Any] | None = None) -> Mapping[str, Any] | None:
        """The form of a text: the request's, or without one and without tools the server's."""
        return given if given is not None or tools else self._options.form

    def _check_choices(self, body: SamplingFields) -> None:
        if (body.n or 1) > max(self._options.slots, 1):
            raise invalid("n", f"must be at most {self._options.slots}, the number of slots.")

    async def _answer(
        self, request: Request, entry: ModelEntry, prompts: Sequence[Prompt], options: Sequence[TextOptions],
        shape: Shape, body: SamplingFields,
    ) -> Answer:  # fmt: skip
        """Start the replies, and answer as the client wants."""
        assert entry.llm is not None
        replies: list[Reply] = []
        try:
            for number, prompt in enumerate(prompts):
                replies.append(_submitted(entry.llm, prompt, options[number % len(options)]))
        except BaseException:
            for reply in replies:
                reply.cancel()
            raise
        job = Job(replies, self._options, self._metrics, entry.used())
        if body.streams:
            return StreamAnswer(job, shape)
        return await job.whole(request.receive, shape.whole)

    async def _body(self, request: Request, kind: type[Any]) -> Any:
        return decoded(await read_body(request.receive, self._options), kind)

    async def responses(self, request: Request) -> Answer:
        """The next items of a conversation, which the client keeps."""
        body: ResponsesRequest = await self._body(request, ResponsesRequest)
        if (body.n or 1) > 1:
            raise invalid("n", "must be 1.")
        messages, tools, form = messages_of(body), chat_tools(body.tools), response_format_of(body)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("input", "text.format" if form else body.form_field()):
            effort = (body.reasoning or {}).get("effort")
            prompt = await _computed(
                llm.prompts.conversation, messages, tools=tools, tool_choice=body.tool_choice,
                response_format=self._form_of(form or body.form(), tools),
                splits_reasoning=self._options.reasoning_format != "none",
                template_values={
                    **self._options.template_values, **({} if effort is None else {"reasoning_effort": effort}),
                },
            )  # fmt: skip
            shape = ResponsesShape(entry.name, body)
            options = _options(llm, body, None, self._options)
            return await self._answer(request, entry, [prompt], options, shape, body)

    # --- vectors and tokens
    async def embeddings(self, request: Request) -> Answer:
        """A vector for each text."""
        body: EmbeddingRequest = await self._body(request, EmbeddingRequest)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("input"):
            texts = inputs_of(body.input, "input")
            ids = await _computed(lambda: [llm.prompts.encode(text) for text in texts])
            vectors = await _computed(llm.vectors, ids, body.dimensions)
        data: list[dict[str, Any]] = []
        for index, vector in enumerate(np.asarray(vectors, "<f4")):
            is_packed = body.encoding_format == "base64"
            shown = base64.b64encode(vector.tobytes()).decode() if is_packed else vector.tolist()
            data.append({"object": "embedding", "index": index, "embedding": shown})
        count = sum(map(len, ids))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JsonAnswer({"object": "list", "data": data, "model": entry.name, "usage": usage})

    async def rerank(self, request: Request) -> Answer:
        """How well documents answer a query, the best first."""
        body: RerankRequest = await self._body(request, RerankRequest)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("documents"):
            scores = await _computed(llm.rerank, body.query, body.documents)
            count = await _computed(
                lambda: sum(len(llm.prompts.encode(text)) for text in (body.query, *body.documents))
            )
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
        if body.return_documents:
            results = [{**one, "document": {"text": body.documents[one["index"]]}} for one in results]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JsonAnswer({"object": "list", "model": entry.name, "results": results, "usage": usage})

    async def tokenize(self, request: Request) -> Answer:
        """Token ids of a text."""
        body: TokenizeRequest = await self._body(request, TokenizeRequest)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("content"):
            await _computed(llm.prompts.check_length, body.content)
            ids = await _computed(
                llm.tokenizer.encode, body.content, add_special=bool(body.add_special),
                parse_special=body.parse_special is not False,
            )  # fmt: skip
            if not body.with_pieces:
                return JsonAnswer({"tokens": ids})
            return JsonAnswer({"tokens": [{"id": i, "piece": _piece(llm.tokenizer.token_bytes(i))} for i in ids]})

    async def detokenize(self, request: Request) -> Answer:
        """The text of token ids."""
        body: DetokenizeRequest = await self._body(request, DetokenizeRequest)
        entry = await self._store.ready(body.model)
        with entry.used() as llm:
            return JsonAnswer({"content": await _computed(llm.tokenizer.decode, body.tokens, show_special=True)})

    async def apply_template(self, request: Request) -> Answer:
        """The prompt of a conversation as text."""
        body: TemplateRequest = await self._body(request, TemplateRequest)
        entry = await self._store.ready(body.model)
        with entry.used() as llm, _naming("messages"):
            text = await _computed(
                llm.prompts.rendered, body.messages, body.tools or (), body.chat_template_kwargs or {}
            )
            return JsonAnswer({"prompt": llm.prompts.plain(text)})


def _about(entry: ModelEntry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": entry.name, "object": "model", "created": entry.created, "owned_by": "kernmill", "status": entry.state,
    }  # fmt: skip
    if entry.llm is not None:
        found["meta"] = {"n_ctx": entry.llm.context, "n_vocab": len(entry.llm.tokenizer), "size": entry.size_bytes}
    return found


def _slot(state: SlotState, entry: ModelEntry) -> dict[str, Any]:
    assert entry.llm is not None
    return {
        "id": state.number, "model": entry.name, "n_ctx": entry.llm.context, "is_processing": state.is_busy,
        "n_tokens": state.tokens, "n_prompt_tokens": state.prompt_tokens, "n_cached_tokens": state.cached_tokens,
        "n_prompt_left": state.prompt_left, "n_decoded": state.completion_tokens,
    }  # fmt: skip


def _figures(llm: LLM) -> dict[str, tuple[str, float]]:
    memory = {"memory_bytes": ("memory of the models", float(sum(llm.model.memory())))}
    if not llm.is_causal:
        return memory
    figures = llm.engine.figures()
    return memory | {
        "slots": ("slots of all models", figures.slots),
        "slots_busy": ("slots that hold a running request", figures.busy_slots),
        "requests_waiting": ("requests that wait for a slot", figures.queue_length),
        "steps": ("steps of the models", figures.steps),
        "guessed_tokens": ("tokens of drafts that were checked", figures.guessed),
        "accepted_tokens": ("tokens of drafts that were right", figures.accepted),
        "busy_seconds": ("time in steps", figures.busy_ns / 1e9),
    }


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def _computed(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Call a function in a thread; errors about what it was given are the client's.

    Raises:
        RequestError: it raises an error of kernmill.
    """
    try:
        return await asyncio.to_thread(functools.partial(function, *given, **named))
    except KernmillError as error:
        raise _of_client(error) from error


@contextmanager
def _naming(text: str, form: str = "response_format") -> Generator[None]:
    """Errors name the fields of the request: that with the text, and that with its form."""
    try:
        yield
    except RequestError as error:
        fields = {
            "Engine.submit": text,
            "decode": text,
            "the prompt has": f"{text}: the prompt has",
            "response_format": form,
        }
        for begin, field in (fields | {"rerank": "model", "embeddings": "model"}).items():
            if error.status == 400 and error.message.startswith(begin):
                error.message = field + error.message.removeprefix(begin)
                error.param = error.message.partition(":")[0]
                break
        raise


def _of_client(error: KernmillError) -> RequestError:
    message = str(error)
    head = message.partition(":")[0]
    param = head if head.replace("_", "").replace(".", "").replace("[", "").replace("]", "").isalnum() else None
    code = "context_length_exceeded" if "context of" in message or "capacity" in message else "invalid_value"
    return RequestError(400, message, param=param, code=code)


def _options(llm: LLM, body: SamplingFields, top: int | None, server: ServerOptions) -> list[TextOptions]:
    """The options of each choice: with a seed, they have different ones."""
    known = len(llm.tokenizer)
    if (bad := next((token for token in body.biases() if token >= known), None)) is not None:
        raise invalid("logit_bias", f"token id {bad} is unknown. Ids are 0 to {known - 1}.")
    ignores = server.ignores_end if body.ignore_eos is None else body.ignore_eos
    try:
        samplings = [
            body.sampling(llm.sampling, llm.tokenizer.end_ids if ignores else (), number)
            for number in range(body.n or 1)
        ]
    except KernmillError as error:
        message = str(error).removeprefix("SamplingOptions: ")
        named = re.match(r"[a-z_]+(?=[=:])", message)
        raise RequestError(400, message, param=named and named[0], code="invalid_value") from error
    limit, stops = body.limit(server.max_tokens), body.stops() if body.stop else server.stop
    return [TextOptions(sampling, limit, stops, top, server.keep) for sampling in samplings]


def _submitted(llm: LLM, prompt: Prompt, options: TextOptions) -> Reply:
    try:
        return llm.start(prompt, options)
    except QueueFull:
        raise RequestError(
            429, "The server is busy: its queue is full. Try again later.", code="queue_full",
            headers={"Retry-After": "1"},
        ) from None  # fmt: skip
    except (KernmillError, ValueError) as error:
        raise _of_client(error if isinstance(error, KernmillError) else KernmillError(str(error))) from error
