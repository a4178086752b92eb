"""class Model: an architecture with its weights, a cache and a tokenizer: logits, embeddings, and generation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, NoReturn

import numpy as np

from kernmill import (
    Context,
    FormatError,
    IndexRangeError,
    SettingError,
    Tensor,
    Variable,
    cat,
    no_grad,
    stack,
)
from kernmill.ir import KernmillError, process_lock
from kernmill.runtime import (
    WeightArena,
    canonical_devices,
    default_device,
    device_list,
    launched_ns,
)

from .. import dist
from ..arguments import is_whole
from ..captures import Jit
from ..formats import gguf
from ..formats.quoting import quoted
from ..quant import MANY_ROWS, float_unit
from .adapters import Adapter, ControlVector, Given, checked_scale
from .arch import ARCHITECTURES, Architecture, Cache, Config, Positions, Weight, keeps_states, kept_by
from .arch.cache import CacheTypes
from .arch.t5 import T5
from .arch.weight import Watcher, nbytes
from .context_shift import ContextShift, dropped_tokens, kept_tokens
from .embedding import WholeTexts, are_several, paired
from .generation import Completion, Generations, Text, TokenGeneration, stop_strings
from .kept_states import KeptStates
from .layer_templates import LayerTemplates
from .loading import Loading
from .model_file import check_known, config_of, digest_of, kept_metadata, naming
from .model_memory import ModelMemory, by_device
from .opening import DEFAULT_CAPACITY, check_memory, divided, opened_file
from .sampling import Chooser, Sampler
from .sources import Sources
from .split import Split, SplitOptions
from .tokenizer import WITHOUT, Tokenizer

__all__ = ["Model", "ModelMemory"]

Weights = Callable[[str], Weight | None]
Array = np.ndarray[Any, Any]
Texts = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
Tokens = Tensor | tuple[Any, ...]  # of a block, or a variable for each sequence
BLOCK, LARGE_BLOCK = 64, 512  # tokens of a prompt that are computed together; ... where a matrix unit does it
_PADDED = 0.6  # of a large block: with this many tokens it is faster than small ones
ONE_BY_ONE = 8  # tokens, of a short prompt or left of a long one: the graph for one token is needed in any case
# attributes that `close` releases
_MEMORY = ("architecture", "_cache", "_kept", "_last", "_all", "_each", "_texts", "_shift", "_sources")


class Model:
    """A language model that is ready to run.

    `weights` returns the tensor of a name, or None; a matrix may also have a special layout (`arch.Matrix`).

    capacity      most tokens of a sequence in the cache; default: the trained context, at most 4096.
    sequences     number of sequences that can be generated at once.
    block         prompt tokens per batch; default: 64, and 512 while that many remain
                  if a matrix unit multiplies them.
    cache_type    the type of keys and values: f32, f16, bf16, or a type of blocks such as q8_0; or a pair of types.

    A model is a context manager: `with Model.from_gguf(path) as model:` closes it at the end. `metadata` has the values
    of the file, except the lists of its vocabulary.

    Several threads may call one model, and another call may come while a generator is suspended: each step takes the
    lock, and checks the contents of the cache. A prefix that a call shares with the previous one is not computed again,
    so alternating calls compute their texts again; `generate_all` is the fast way to generate several texts.

    Raises:
        FormatError: an unknown architecture, or tensors and metadata that do not fit together.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        tokenizer: Tokenizer | None = None,
        *,
        capacity: int | None = None,
        sequences: int = 1,
        block: int | None = None,
        cache_type: CacheTypes = "f32",
    ) -> None:
        check_known(config.name)
        capacity = min(config.context, DEFAULT_CAPACITY) if capacity is None else capacity
        sizes = (BLOCK, LARGE_BLOCK) if block is None else (block, block)
        if not all(is_whole(size, 1) for size in (capacity, sequences, *sizes)):
            raise SettingError(
                f"Model: capacity={capacity}, sequences={sequences}, block={block}: must be integers >= 1."
            )
        self.config, self.tokenizer, self.capacity, self.device = config, tokenizer, capacity, ",".join(device_list())
        self.cache_type = cache_type
        self.metadata: Mapping[str, Any] = {}
        self.digest = ""  # of its file
        self.split: Split | None = None
        self.adapters: tuple[Adapter | ControlVector, ...] = ()
        self._shift: ContextShift | None = None  # made when a text first needs it
        self.changes = 0  # of the scales of adapters: keys and values before one are not those after it
        self.block, self.large_block = (min(size, capacity) for size in sizes)
        if not config.homes:
            check_memory(capacity, Cache.nbytes(kept_by(config), capacity, sequences, cache_type))
        with no_grad():
            self.architecture: Architecture = ARCHITECTURES[config.name](config, weights, capacity)
            self._cache = Cache.empty(kept_by(config), capacity, sequences, cache_type)
        announce = partial(self._announce, "_move_states")
        self._kept = KeptStates(self._cache, sequences, is_needed=keeps_states(config), announce=announce)
        model = self.architecture
        self._texts = WholeTexts(model.encoder if isinstance(model, T5) else model, capacity)
        self._sources = Sources(model, self._texts, capacity, sequences) if isinstance(model, T5) else None
        has_unit = float_unit((config.cache_homes or (default_device(),))[0]) is not None
        if not (has_unit or config.experts.count) or self.large_block < MANY_ROWS:
            self.large_block = self.block
        if tokenizer is not None and len(tokenizer) > self.architecture.vocabulary:
            raise FormatError(
                f"tokenizer.ggml.tokens has {len(tokenizer)} tokens, and token_embd.weight has rows for "
                f"{self.architecture.vocabulary}. The file's vocabulary and tensors are inconsistent."
            )
        self._seen: list[list[int]] = [[] for _ in range(sequences)]  # the tokens in the cache
        self._stepping = process_lock()  # the cache and its contents belong to one step at a time
        self._single = [Variable(f"token{n}", 0, self.architecture.vocabulary - 1) for n in range(sequences)]
        self.computed_tokens = 0  # by all calls so far
        self.builds = self.build_ns = 0  # calls that were not replays, and their time apart from running kernels
        self._last = Jit(self._last_logits, runs_first=False)
        self._all = Jit(self._all_states, runs_first=False)
        self._each = Jit(self._each_logits, runs_first=False)

    @classmethod
    def of(
        cls,
        metadata: Mapping[str, Any],
        weights: Weights,
        *,
        n_ctx: int | None = None,
        split: Split | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> Model:
        """Make a model from the metadata of a GGUF file: its sizes and its tokenizer, if it has one and `tokenizer` is
        not given.

        `n_ctx` is llama.cpp's name for `capacity`; 0: the trained context. `split`: the devices of the weights.
        `config`: the sizes, where they are not those of the metadata.
        """
        config = config or config_of(metadata)
        if split is not None:
            config = replace(config, homes=(*split.layers, split.output), cache_homes=split.caches)
        if n_ctx is not None and options.get("capacity") is not None:
            raise SettingError(f"Model: n_ctx={n_ctx} and capacity={options['capacity']} are the same size. Give one.")
        if n_ctx is not None:
            options["capacity"] = config.context if is_whole(n_ctx) and n_ctx == 0 else n_ctx
        if "tokenizer" not in options:
            has_tokens = metadata.get("tokenizer.ggml.model", "none") not in WITHOUT
            options["tokenizer"] = Tokenizer(metadata) if has_tokens else None
        model = cls(config, weights, **options)
        model.metadata, model.split = kept_metadata(metadata), split
        return model

    @classmethod
    def from_gguf(
        cls,
        source: str | os.PathLike[str] | gguf.GGUFFile,
        *,
        arena: WeightArena | None = None,
        device: str | None = None,
        wanted: SplitOptions | None = None,
        adapters: Given = (),
        watcher: Watcher | None = None,
        quantize: str | None = None,
        **options: Any,
    ) -> Model:
        """Load a model from a GGUF file, or the first part of a split one, or from the folder of a Hugging Face model;
        `options` as for the class and `of`.

        `arena`: the result of an earlier `arena_for` for the file. `device`: such as "CL", or several in order
        of preference, over which the layers are split: "CL,LLVM"; default: the setting DEVICE. `wanted`: how to split.
        `adapters`: paths of LoRA files and control vectors, or a dict of paths and scales. `watcher`: replaces weights
        by ones that report their inputs. `quantize`: the mix that the weights get now, such as "Q8_0", as
        `kernmill.quantize` names them; default: they keep their bits.

        Weights are copied now, matrices in the layout that products read fastest; no tensor of the file is read again.

        Raises:
            FormatError: the file cannot be read, or has no model that kernmill can run.
        """
        if device is not None:
            with Context(DEVICE=canonical_devices(device)):
                return cls.from_gguf(source, arena=arena, wanted=wanted, adapters=adapters, watcher=watcher,
                                     quantize=quantize, **options)  # fmt: skip
        file = opened_file(source, quantize)
        with naming(file):
            own, config, split = divided(file, wanted, adapters, options)
        loading = Loading(file, own, split, watcher)
        if arena is not None:
            loading.arenas[default_device()] = arena
        with loading.shown():
            loading.open_adapters(adapters, config)
            model = cls.of(file.metadata, loading.weight, split=split, config=config, **options)
            loading.finish(model.architecture)
        model.adapters, model.digest = tuple(loading.adapters), digest_of(file)
        return model

    def __reduce__(self) -> NoReturn:
        raise KernmillError(
            "Model: a model cannot be pickled or copied: its compiled code refers to its memory. Open its file "
            "again: Model.from_gguf(path)."
        )

    # --- captured functions: positions and single tokens are variables, so that one graph serves all of them
    def _last_logits(self, tokens: Tokens, last: Tensor | None, positions: Positions) -> Tensor:
        """The logits after token `last` of each sequence, None: the only one. Shapes: (sequences, vocabulary)."""
        hidden = self._all_states(tokens, last, positions)
        if last is not None:
            hidden = hidden.take_along_dim(last.unflatten(0, (-1, 1, 1)), 1)
        rows = hidden.squeeze(1).contiguous()  # a product that gathers as it goes reads weights in columns
        return self.architecture.logits(rows)

    def _each_logits(self, tokens: Tokens, last: Tensor | None, positions: Positions) -> Tensor:
        """The logits after each token of the only sequence. Shapes: (tokens, vocabulary)."""
        return self.architecture.logits(self._all_states(tokens, last, positions).squeeze(0).contiguous())

    def _all_states(self, tokens: Tokens, last: Tensor | None, positions: Positions) -> Tensor:
        """The hidden state of every token. Shapes: (sequences, tokens, width)."""
        table = tokens if isinstance(tokens, Tensor) else cat([Tensor(token).reshape(1, 1) for token in tokens])
        return self.architecture.forward(table, positions, self._cache, LayerTemplates().layer)

    # --- tokens into the cache
    def _checked(self, ids: Sequence[int], call: str) -> list[int]:
        try:
            known = [*map(index, ids)]
        except TypeError:
            raise SettingError(
                f"{call}: token ids must be integers. Encode text with tokenizer.encode(), or pass it to complete()."
            ) from None
        if not self.architecture.is_causal and call in ("generate", "logits"):
            raise SettingError(
                f"{call}: {self.config.name} is an encoder: its tokens attend to later ones too, so that it predicts "
                "no text. Use embed(), or a causal model."
            )
        if not known:
            raise SettingError(f"{call}: no tokens. Give at least one, such as the begin token.")
        if len(known) > self.capacity:
            raise SettingError(
                f"{call}: {len(known)} tokens exceed the cache capacity of {self.capacity}. Shorten the text, or "
                "build the "
                f"model with a larger capacity (it was trained on {self.config.context})."
            )
        bad = [i for i in known if not 0 <= i < self.architecture.vocabulary]
        if bad:
            raise IndexRangeError(
                f"{call}: token id {bad[0]} is unknown. Ids are 0 to {self.architecture.vocabulary - 1}."
            )
        return known

    def _rewind(self, texts: Sequence[list[int]]) -> None:
        """Keep the common prefix of the cache and these texts; the last token is computed again."""
        for n, ids in enumerate(texts):
            seen = self._seen[n]
            if len(seen) < len(ids) and seen == ids[: len(seen)]:  # for each token of a text that may be long
                continue
            pairs = zip(seen, ids[:-1], strict=False)
            same = next((position for position, (old, new) in enumerate(pairs) if old != new), None)
            same = max(0, len(ids) - 1) if same is None else same
            self._seen[n] = seen[: self._kept.rewound(n, len(seen), same)]

    def _run(self, texts: Sequence[list[int]], function: Callable[..., Tensor]) -> Generator[tuple[list[slice], Array]]:
        """Compute the tokens that are not in the cache, block by block: yield which tokens of a block are new, and the
        results.

        A sequence with fewer remaining tokens than the others is padded. Padding is written to the cache after its
        tokens, and is overwritten before it is visible. If a block would go past the end of the cache it begins
        earlier, with tokens that are already there.
        """
        while (left := [len(ids) - len(seen) for ids, seen in zip(texts, self._seen, strict=False)]) and max(left) > 0:
            size = 1 if max(left) <= min(ONE_BY_ONE, self.block - 1) else self.block
            size = self.large_block if max(left) > _PADDED * self.large_block else size
            if self._kept.is_needed:  # a state takes each token once
                self._seen = [seen if len(seen) < self.capacity else [] for seen in self._seen]
                size = size if max(map(len, self._seen)) + size <= self.capacity else 1
            left += [0] * (len(self._seen) - len(texts))
            first = [min(len(seen), self.capacity - size) for seen in self._seen]
            rows: list[list[int]] = []
            new: list[slice] = []
            then: list[list[int]] = []
            for n, (seen, count, start) in enumerate(zip(self._seen, left, first, strict=True)):
                then.append(texts[n][: start + size] if count > 0 else seen)
                block = then[n][start:]
                rows.append([*block, *[0] * (size - len(block))])
                new.append(slice(len(seen) - start, len(block)))
            counts = [part.stop - part.start for part in new]
            last = [max(0, part.stop - 1) for part in new]
            result = self._run_block(rows, first, (last, counts), "_all" if function is self._all else "_last")
            self._seen = then
            self.computed_tokens += sum(part.stop - part.start for part in new)
            yield new[: len(texts)], result

    def _run_block(
        self, rows: Sequence[Sequence[int]], first: Sequence[int], new: tuple[Sequence[int], Sequence[int]], kind: str
    ) -> Array:
        """Compute a block of tokens of each sequence: `kind` names the captured function.

        `first`: the position of each block. `new`: in each, the index of the last new token, and how many are new. The
        caller has the lock. Of a model over ranks, rank 0 has the others compute their parts.
        """
        self._announce("_run_block", rows, first, new, kind)
        function, size, (last, counts) = getattr(self, kind), len(rows[0]), new
        with self._on_device(), no_grad():
            tokens: Tokens = tuple(one.bind(row[0]) for one, row in zip(self._single, rows, strict=True))
            if size > 1:
                tokens = Tensor(np.array(rows, np.int32))
            positions = Positions.bound(first, size, self.capacity)
            if self._kept.is_needed and (size > 1 or len(rows) > 1):
                positions = positions._replace(counts=Tensor(np.array(counts, np.int32)))
            start, launched, replays = time.perf_counter_ns(), launched_ns(), self.replays
            result: Array = function(tokens, Tensor(np.array(last, np.int32)) if size > 1 else None, positions).numpy()
            if self.replays == replays:  # a graph was built, its kernels found or compiled, and captured
                self.builds += 1
                self.build_ns += time.perf_counter_ns() - start - (launched_ns() - launched)
        return result

    def _announce(self, call: str, *given: Any) -> None:
        """Tell the other ranks of a model over ranks what to compute: see `follow`."""
        if self.config.part is not None and self.config.part.rank == 0:
            dist.communicator().announce((call, *given))

    def _move_states(self, source: int, target: int) -> None:
        """Copy the states of a sequence to another row, as rank 0 did."""
        with self._stepping, self._on_device():
            self._kept.move(source, target)

    def _next(self, texts: Sequence[list[int]], sources: Sequence[list[int]] = ()) -> list[Array]:
        """Return the logits after each text. A text without new tokens since the last call gets an empty array.
        `sources`: what the decoder of each reads, of a model with an encoder."""
        found = [np.zeros(0, np.float32) for _ in texts]
        with self._stepping:
            for number, source in enumerate(sources):
                self._put_source(number, source)
            self._rewind(texts)
            self._read_prompts(texts)
            for new, logits in self._run(texts, self._last):
                for n, part in enumerate(new):
                    if part.stop > part.start:
                        found[n] = logits[n]
        return found

    def _read_prompts(self, texts: Sequence[list[int]]) -> None:
        """Keep the state before the last token of a prompt, if the model has states."""
        if not self._kept.is_needed:
            return
        pairs = [*zip(texts, self._seen, strict=False)]
        before = [ids[:-1] if len(ids) - len(seen) > 1 else seen for ids, seen in pairs]
        prompts = [n for n, (ids, seen) in enumerate(pairs) if len(ids) - len(seen) > 1]
        for _ in self._run(before, self._last):
            pass
        with self._on_device():
            for n in prompts:
                self._kept.keep(n, len(before[n]))

    def _put_source(self, number: int, ids: list[int]) -> None:
        """Have a sequence read this source; the caller has the lock."""
        with self._on_device():
            if self._sources is not None and self._sources.put(number, ids):
                self._seen[number] = []

    def encode(self, source: str | Sequence[int]) -> None:
        """Run the encoder on a text or token ids, for later calls of `logits` and `next_logits`. `generate` and
        `complete` encode their prompt themselves.

        Raises:
            SettingError: the model has no decoder with an encoder, or the text is too long.
        """
        if self._sources is None:
            raise SettingError(f"encode: {self.config.name} has no encoder and decoder. Use generate() or embed().")
        ids = self._checked(self._tokens_of(source, "encode") if isinstance(source, str) else source, "encode")
        with self._stepping:
            self._put_source(0, ids)

    def _states(self, ids: Sequence[int], call: str) -> Tensor:
        known = self._checked(ids, call)
        if self.config.part is not None:
            raise SettingError(f"{call}: the model is divided over {self.config.part.size} ranks. Open it on one rank.")
        with self._stepping, self._on_device():
            if not self.architecture.is_causal:
                return Tensor(self._texts.hidden(known))
            if self._sources is not None:
                self._sources.check(call)
            self._seen[0] = []
            self._kept.forget()
            return Tensor(np.concatenate([states[0, new[0]] for new, states in self._run([known], self._all)]))

    def reset(self) -> None:
        """Forget the tokens of earlier calls."""
        with self._stepping:
            self._seen = [[] for _ in self._seen]
            self._kept.forget()

    def rescale(self, scales: Sequence[float]) -> None:
        """Change the scales of the adapters, in their order. Earlier tokens are computed again.

        Raises:
            SettingError: another number of scales, or one that is not a finite number.
        """
        if len(scales) != len(self.adapters):
            raise SettingError(f"rescale: {len(scales)} scales, and the model has {len(self.adapters)} adapters.")
        scales = [checked_scale(scale) for scale in scales]
        with self._stepping, self._on_device():
            self._announce("rescale", scales)
            for adapter, scale in zip(self.adapters, scales, strict=True):
                adapter.rescale(scale)
            self.changes += 1
            if self._sources is not None:
                self._sources.clear()
        self.reset()

    @contextmanager
    def turn(self) -> Generator[None]:
        """Take the model for one step of an engine: its lock and its device, without gradients."""
        with self._stepping, self._on_device(), no_grad():
            yield

    def _on_device(self) -> AbstractContextManager[None]:
        """The model's device, which may differ from the setting of the caller."""
        return Context(DEVICE=self.device)

    # --- its end
    def close(self) -> None:
        """Release weights, cache and captured graphs. Later calls raise an error; a second `close` does nothing."""
        with self._stepping:
            if _MEMORY[0] in self.__dict__:
                self._announce("close")
            for name in _MEMORY:
                self.__dict__.pop(name, None)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name in _MEMORY:
            raise KernmillError("Model: it is closed. Open its file again: Model.from_gguf(path).")
        raise AttributeError(f"Model has no attribute {name!r}.")

    # --- memory
    @property
    def _captures(self) -> tuple[Jit[..., Tensor], ...]:
        return self._last, self._all, self._each, *self._texts.captures

    @property
    def replays(self) -> int:
        """Steps so far that were one native call; the others also built a graph and its kernels."""
        return sum(one.replays for one in self._captures)

    def memory(self) -> ModelMemory:
        """Return the current memory of the weights, the cache and captured graphs."""
        compute = sum(one.memory().kept_bytes for one in self._captures)
        context = sum(map(nbytes, self._cache.tensors))
        return ModelMemory(sum(self.architecture.bytes_by_layout.values()), context, compute)

    def memory_by_device(self) -> dict[str, ModelMemory]:
        """Return the memory on each device."""
        weights, captures, cache = self.architecture.bytes_by_layout, self._captures, self._cache.tensors
        return by_device(self.device.split(","), weights, captures, cache)

    # --- results
    def next_logits(self, ids: Sequence[int]) -> Array:
        """The logits of the token after these. Shapes: (vocabulary,)."""
        known = self._checked(ids, "logits")
        if self._sources is not None:
            self._sources.check("logits")
        return self._next([known])[0]

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """The last hidden state of each token. Shapes: (tokens, width)."""
        return self._states(ids, "hidden")

    def logits(self, ids: Sequence[int]) -> Tensor:
        """The logits of the token after each of these. Shapes: (tokens, vocabulary)."""
        with self._on_device(), no_grad():
            return self.architecture.logits(self._states(ids, "logits")).realize()

    def embed(self, text: Texts, *, normalize: bool = True) -> Tensor:
        """Return the vector of a text or of token ids, pooled as the file says, of length 1 if `normalize`.

        Several texts in a list are computed together, and the result has a row for each.
        `<architecture>.pooling_type`: mean (also without the key), first or last token, or rank: scores of classes,
        which are not normalized. With type none there is a vector for each token, and one text at a time.
        Shapes: (width,) or (classes,), with a first axis for several texts; (tokens, width).

        Raises:
            SettingError: several texts with type none; a text that is longer than the capacity.
        """
        several = are_several(text)
        if several and self.architecture.pooling.kind == "none":
            raise SettingError(
                "embed: the file's pooling type is none, so that a text has a vector for each token. Give one text at "
                "a time."
            )
        texts: Sequence[Any] = text if several else [text]
        found = self._vectors([self._checked(self._tokens_of(one, "embed"), "embed") for one in texts], normalize)
        return stack(found) if several else found[0]

    def rerank(self, query: str, documents: Sequence[str]) -> Tensor:
        """Return how well each document answers a query, by a model that ranks. Shapes: (documents,).

        Raises:
            SettingError: the file is not of a model that ranks (pooling_type 4).
        """
        kind = self.architecture.pooling.kind
        if kind != "rank":
            raise SettingError(f"rerank: the file's pooling type is {kind}, not rank. Use the file of a reranker.")
        if self.tokenizer is None:
            raise SettingError("rerank: the model was built without a tokenizer.")
        template = self.metadata.get("tokenizer.chat_template.rerank")
        pairs = [paired(self.tokenizer, template, query, document) for document in documents]
        return stack(self._vectors([self._checked(ids, "rerank") for ids in pairs], False))[:, 0].realize()

    def _vectors(self, ids: list[list[int]], normalize: bool) -> list[Tensor]:
        with self._stepping, self._on_device(), no_grad():
            return [Tensor(one) for one in self._texts.vectors(ids, normalize)]

    def generate(
        self,
        ids: Sequence[int],
        sampler: Chooser | None = None,
        max_tokens: int | None = None,
        *,
        keep: int | None = None,
    ) -> TokenGeneration:
        """Generate tokens one by one, until the end token, `max_tokens`, or a full cache.

        The end token is not among them. Greedy without a sampler. The result has `finish_reason`, `prompt_tokens` and
        `tokens`. With `keep` a full cache does not end it: half of the tokens after the first `keep` are dropped.
        -1 keeps the prompt.

        Raises:
            SettingError: a prompt or `keep` that does not fit, or a model whose keys cannot move.
        """
        return TokenGeneration(self.generate_all([ids], sampler, max_tokens, keep=keep))

    def _text_of(self, ids: Sequence[int], max_tokens: int | None, keep: int | None = None) -> Text:
        """Return a text that begins with these tokens; see `generate`, which raises the same errors."""
        known = self._checked(ids, "generate")
        if keep is not None:
            self._shift = self._shift or ContextShift(self.architecture, self._cache)
            keep = kept_tokens(keep, len(known), self.capacity)
        if self._sources is not None:
            return Text.of([self.config.start_id], max_tokens, self.capacity, source=known)
        return Text.of(known, max_tokens, self.capacity, keep)

    def _make_room(self, number: int, text: Text) -> None:
        """Drop tokens of a text that exceeds the cache, if it has `keep`; what follows them moves to the front."""
        if text.keep is None or len(text.ids) <= self.capacity or text.finish_reason is not None:
            return
        drop = dropped_tokens(self.capacity, text.keep)
        with self.turn():
            seen, end = self._seen[number], len(text.ids) - 1
            if seen[:end] == text.ids[:end] and self._shift is not None:  # else the rest is computed again
                self._shift.shift(number, text.keep, drop, end)
                self._seen[number] = [*seen[: text.keep], *seen[text.keep + drop : end]]
        text.drop(text.keep, drop)

    def _forget_shifted(self, texts: Sequence[Text]) -> None:
        """Forget keys and values that depend on dropped tokens: another text must not begin with them."""
        with self._stepping:
            for number, text in enumerate(texts):
                if text.dropped:
                    self._seen[number] = self._seen[number][: text.keep]

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        sampler: Chooser | None = None,
        max_tokens: int | None = None,
        *,
        keep: int | None = None,
    ) -> Generations:
        """Generate for several prompts together: at each step a token for each, None for those that have ended.

        Raises:
            SettingError: more prompts than the model has sequences, or one that is too long.
        """
        if not hasattr(prompts, "__len__"):
            raise SettingError(f"generate: prompts={prompts!r}. Give a list of token ids for each text.")
        if not 0 < len(prompts) <= len(self._seen):
            raise SettingError(
                f"generate: {len(prompts)} prompts, and the model was built for {len(self._seen)} at once. "
                "Give fewer, or build it with more sequences."
            )
        if max_tokens is not None and not is_whole(max_tokens, 0):
            raise SettingError(
                f"generate: max_tokens={max_tokens!r}: must be an integer >= 0. Leave it out for no limit."
            )
        sampler = Sampler(temperature=0) if sampler is None else sampler
        if not hasattr(sampler, "choose"):
            raise SettingError(
                f"generate: sampler={sampler!r}. Give a Sampler, such as Sampler(temperature=0.8), or None."
            )
        texts = [self._text_of(ids, max_tokens, keep) for ids in prompts]
        return Generations(texts, self._steps(texts, sampler))

    def _steps(self, texts: Sequence[Text], sampler: Chooser) -> Generator[list[int | None]]:
        """The steps of `generate_all`."""
        ends = frozenset[int]() if self.tokenizer is None else self.tokenizer.end_ids
        known = None if self.tokenizer is None else len(self.tokenizer)  # embeddings may be padded past the vocabulary
        sources = [text.source for text in texts] if self._sources is not None else []
        try:
            while any(text.finish_reason is None for text in texts):
                step: list[int | None] = []
                for number, text in enumerate(texts):
                    self._make_room(number, text)
                open_ids = [text.ids if text.finish_reason is None else [] for text in texts]
                for text, logits in zip(texts, self._next(open_ids, sources), strict=True):
                    token: int | None = None
                    if text.finish_reason is None:
                        token = sampler.choose(logits[:known], text.ids)
                        token = text.add(token, is_end=token in ends)
                    step.append(token)
                if any(token is not None for token in step):
                    yield step
        finally:
            self._forget_shifted(texts)

    def complete(
        self,
        text: str,
        sampler: Chooser | None = None,
        max_tokens: int | None = None,
        *,
        stop: str | Sequence[str] | None = None,
    ) -> Completion:
        """Generate the text that follows, piece by piece, up to a `stop` string. Result: as for `generate`.

        Raises:
            SettingError: the model has no tokenizer, or the text is too long.
        """
        stops = stop_strings(stop, "complete")
        generation = self.generate(self._tokens_of(text, "complete"), sampler, max_tokens)
        assert self.tokenizer is not None
        return Completion(generation, self.tokenizer.stream(), stops)

    def _tokens_of(self, text: str | Sequence[int], call: str) -> Sequence[int]:
        """Return the token ids of a text; `embed` accepts ids too."""
        if call == "embed" and not isinstance(text, str):
            return text
        if self.tokenizer is None:
            raise SettingError(f"{call}: the model was built without a tokenizer. Use generate() with token ids.")
        if not isinstance(text, str):
            raise SettingError(f"{call}: the text is {quoted(text)}: must be a string. generate() takes token ids.")
        return self.tokenizer.encode(text)
