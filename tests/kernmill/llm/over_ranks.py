"""A job of `mpirun`: rank 0 prints as JSON what models over all ranks compute, and what it computes alone.

    mpirun -n 2 python -m tests.kernmill.llm.over_ranks FOLDER MODE SHARES NAME..

FOLDER has a file NAME.gguf for each name. The results of a name are logits of a prompt read in blocks and by a token,
greedy tokens, texts of an engine, and bytes of weights; or an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernmill import dist
from kernmill.ir import KernmillError
from kernmill.llm.arch import keeps_states
from kernmill.llm.engine import Engine, GenerationRequest, SamplingOptions
from kernmill.llm.follow import follow
from kernmill.llm.generate import Model
from kernmill.llm.sequences.drafts import NgramDraft
from kernmill.llm.split import SplitOptions

IDS = [1, 270, 45, 261, 99, 100, 101, 263, 264, 265, 12]


def results(path: Path, wanted: SplitOptions | None) -> dict[str, Any]:
    adapters = {str(one): 0.5 for one in sorted(path.parent.glob("*.adapter"))}
    with Model.from_gguf(path, block=4, wanted=wanted, adapters=adapters) as model:
        found = {
            "blocks": model.next_logits(IDS).tolist(), "token": model.next_logits([*IDS, 7]).tolist(),
            "greedy": [*model.generate(IDS[:3], max_tokens=6)], "weights": model.memory().weights,
        }  # fmt: skip
        found["again"] = model.next_logits([*IDS, 9, 8]).tolist()  # a model with states goes back to a kept one
        if adapters:
            model.rescale([2.0] * len(adapters))
            found["rescaled"] = model.next_logits(IDS).tolist()
        draft = None if keeps_states(model.config) else NgramDraft()
        with Engine(model, slots=2, chunk=16, draft=draft) as engine:
            texts = [[*IDS, 0], [*IDS, 1], [*IDS, *IDS]]
            asked = [GenerationRequest(ids, SamplingOptions(temperature=0), max_tokens=4) for ids in texts]
            found["texts"] = ["".join(piece.text for piece in one) for one in [*map(engine.submit, asked)]]
    return found


def main(folder: str, mode: str, shares: str, *names: str) -> None:
    wanted = SplitOptions(shares=tuple(json.loads(shares)), mode=mode, over_ranks=True)
    found: dict[str, Any] = {}
    for name in names:
        path = Path(folder, f"{name}.gguf")
        try:
            if dist.rank():
                follow()
                continue
            over = results(path, wanted)
            dist.communicator().announce(("end",))
            found[name] = {"over": over, "alone": results(path, None)}
        except KernmillError as error:  # on all ranks, before anything is computed
            found[name] = {"error": str(error)}
    if dist.rank() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
