"""Models over ranks give the logits of one rank: layers by rank, and heads, rows and experts by rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.formats import gguf
from kernmill.ir import DeviceSpec, DeviceTable, KernmillError
from kernmill.llm import ranks
from kernmill.llm.arch import ARCHITECTURES
from kernmill.llm.model_file import config_in
from kernmill.llm.ranks import over_ranks
from kernmill.llm.split import SplitOptions, stages
from kernmill.quant import QuantizedTensor, save
from tests.kernmill.dist.ranks import everywhere, job, needs_mpi
from tests.kernmill.llm.test_adapters import pairs, write_adapter, write_vector
from tests.tiny_models import CASES, Case, metadata_of, weights_of, write

CAUSAL = [name for name, case in CASES.items() if "attention.causal" not in case.keys and case.arch != "t5"]
UNDIVIDED = {
    **dict.fromkeys(("olmo2", "olmoe", "minimax-m2"), "norm all heads"), "starcoder": "1 key heads",
    **dict.fromkeys(("apertus", "baichuan", "bitnet", "bloom", "deepseek2", "llama4", "mpt"), "in another way"),
    **{name: "in another way" for name in CAUSAL if ARCHITECTURES[CASES[name].arch].has_states},
}  # fmt: skip
SHARING = ("gemma3n", "gemma4")  # layers share more than x
FEW = ["llama", "gpt-oss", "qwen2moe", "gemma2", "phi3", "gpt2"]  # every kind of part
OTHERS = [name for name in CAUSAL if name not in FEW]
JOBS = [FEW, *(OTHERS[n::4] for n in range(4))]  # also on a busy machine a job ends long before its limit


@pytest.fixture
def device() -> str:
    """The default one: each job opens its own."""
    return "LLVM"


def over(folder: Path, names: list[str], mode: str, ranks: int = 2, shares: str = "[]") -> dict[str, Any]:
    """The results of models on ranks, and on one rank, by name."""
    done = job("from tests.kernmill.llm import over_ranks as it; import sys; it.main(*sys.argv[1:])",
               ranks, str(folder), mode, shares, *names, MPIEXEC_TIMEOUT="1500")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_same(found: dict[str, Any]) -> None:
    mine, truth = found["over"], found["alone"]
    for name in ("blocks", "token", "again"):
        most = np.abs(truth[name]).max()
        np.testing.assert_allclose(mine[name], truth[name], rtol=2e-4, atol=2e-4 * most)
    assert (mine["greedy"], mine["texts"]) == (truth["greedy"], truth["texts"])


@needs_mpi
@pytest.mark.parametrize("names", JOBS, ids=["few", "first", "second", "third", "fourth"])
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_logits_are_those_of_one_rank(tmp_path: Path, names: list[str], mode: str) -> None:
    for name in names:
        write(CASES[name], tmp_path / f"{name}.gguf")
    for name, found in over(tmp_path, names, mode).items():
        if CASES[name].arch in SHARING or (mode == "tensor" and CASES[name].arch in UNDIVIDED):
            assert ("share more than x" if CASES[name].arch in SHARING else UNDIVIDED[CASES[name].arch]) in found[
                "error"
            ]
            continue
        assert "error" not in found, f"{name}: {found}"
        try:
            assert_same(found)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        assert found["over"]["weights"] < 0.8 * found["alone"]["weights"]  # its part only


@needs_mpi
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_adapters_over_ranks(tmp_path: Path, mode: str) -> None:
    """Pairs of matrices that are divided by rows, by columns and not, of each layer and of the embedding."""
    write(CASES["llama"], tmp_path / "llama.gguf")
    weights = weights_of(CASES["llama"])
    names = [name for name, array in weights.items() if array.ndim == 2 and ("blk.0" in name or "blk.2" in name)]
    for n, some in enumerate((names, ["token_embd.weight", "output.weight"])):
        given = pairs(weights, 4, n, *some)
        write_adapter(tmp_path / f"{n}.adapter", {name: pair for name, pair in given.items() if name in weights})
    write_vector(
        tmp_path / "vector.adapter", {layer: np.ones(weights["token_embd.weight"].shape[1]) for layer in (1, 2)}
    )
    found = over(tmp_path, ["llama"], mode)["llama"]
    assert "error" not in found, found
    assert_same(found)
    mine, truth = found["over"]["rescaled"], found["alone"]["rescaled"]
    np.testing.assert_allclose(mine, truth, rtol=2e-4, atol=2e-4 * np.abs(truth).max())
    assert np.abs(np.subtract(truth, found["alone"]["blocks"])).max() > 0.1


@needs_mpi
def test_ranks_without_layers_and_by_shares(tmp_path: Path) -> None:
    write(CASES["llama"], tmp_path / "llama.gguf")
    assert_same(over(tmp_path, ["llama"], "layer", 3, "[1, 0, 2]")["llama"])
    assert "-ts: 2 shares for 3 ranks" in over(tmp_path, ["llama"], "layer", 3, "[1, 2]")["llama"]["error"]


def quantized(path: Path, kind: str, rows: int) -> None:
    """A model whose matrices have blocks of 32 values."""
    case = Case("llama", {"feed_forward_length": rows})
    weights = {name: Tensor(array) for name, array in weights_of(case).items()}
    save(path, {name: QuantizedTensor.quantize(w, kind) if w.ndim == 2 else w for name, w in weights.items()},
         metadata_of(case))  # fmt: skip


@needs_mpi
def test_blocks_are_divided_between_columns(tmp_path: Path) -> None:
    quantized(tmp_path / "q8.gguf", "Q8_0", 128)
    quantized(tmp_path / "q4.gguf", "Q4_0", 128)
    quantized(tmp_path / "narrow.gguf", "Q4_0", 96)
    found = over(tmp_path, ["q8", "q4", "narrow"], "tensor")
    assert "ffn_down.weight has rows of 96 values in blocks of 32" in found["narrow"]["error"]
    for name in ("q8", "q4"):
        assert found[name]["over"]["greedy"] == found[name]["alone"]["greedy"]
        np.testing.assert_allclose(found[name]["over"]["token"], found[name]["alone"]["token"], rtol=0.1, atol=0.1)


def test_other_files_on_ranks_are_an_error(tmp_path: Path) -> None:
    paths = [write(CASES["llama"], tmp_path / f"{n}.gguf", seed=n) for n in range(2)]
    wanted = SplitOptions(over_ranks=True)
    with pytest.raises(KernmillError, match="the ranks differ in the file of the model"):
        everywhere(2, lambda rank: over_ranks(gguf.read(paths[rank]), wanted, lambda config: 0))


@pytest.mark.parametrize("mode", ["layer", "tensor"])
@pytest.mark.parametrize("name", ["t5", "gemma3n"])
def test_layers_that_share_more_than_x_are_not_divided(tmp_path: Path, name: str, mode: Any) -> None:
    """A refused split does not name the other one, which is refused as well."""
    file, wanted = gguf.read(write(CASES[name], tmp_path / "model.gguf")), SplitOptions(over_ranks=True, mode=mode)
    with pytest.raises(
        KernmillError, match=rf"layers of {name} models share more than x\. Run the model on one rank\.$"
    ):
        everywhere(2, lambda rank: over_ranks(file, wanted, lambda config: 0))


@pytest.mark.parametrize("name", ["gemma2", "qwen2moe"])
def test_what_a_token_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The embedding is the output of a tied model, and a token reads some of the experts only."""
    file, asked = gguf.read(write(CASES[name], tmp_path / f"{name}.gguf")), list[tuple[Any, ...]]()

    def seen(*given: Any) -> Any:
        asked.append(given)
        return stages(*given)

    monkeypatch.setattr(ranks, "stages", seen)
    everywhere(2, lambda rank: over_ranks(file, SplitOptions(over_ranks=True), lambda config: 0))
    of_layer, of_output, _, _, _, embedding, read = asked[0]
    sizes = {name: entry.stop - entry.start for name, entry in file.entries.items()}
    experts = sum(size for name, size in sizes.items() if "_exps." in name)
    assert of_output == sum(size for name, size in sizes.items() if name.startswith("output")) + (
        embedding if "output.weight" not in sizes else 0
    )
    config = config_in(file).experts
    assert sum(of_layer) - sum(read) == (experts - experts * config.used // config.count if experts else 0)
    assert sum(of_layer) + embedding + of_output >= sum(sizes.values())


def table(*rooms: int, rates: tuple[float, ...] = (1.0, 1.0)) -> DeviceTable:
    specs = [
        DeviceSpec(f"rank {n}", bytes_per_ns=r, limit_bytes=m)
        for n, (m, r) in enumerate(zip(rooms, rates, strict=True))
    ]
    return DeviceTable(tuple(specs), {})


def test_layers_by_memory_and_rate() -> None:
    """The slowest rank is as fast as it can be."""
    many = 1 << 40
    assert stages([100] * 8, 0, 0, table(many, many))[0] == [0, 4, 8]
    assert stages([100] * 8, 200, 0, table(many, many))[0] == [0, 5, 8]
    assert stages([100] * 8, 0, 0, table(many, many, rates=(3.0, 1.0)))[0] == [0, 6, 8]
    assert stages([100] * 8, 0, 0, table(230, many))[0] == [0, 2, 8]
    assert stages([100] * 8, 0, 50, table(330, many))[0] == [0, 2, 8]
    assert stages([100] * 8, 0, 0, table(330, 330))[0] is None
    assert stages([100] * 8, 0, 0, table(many, many), (3, 1))[0] == [0, 6, 8]
    slow = table(many, many)._replace(specs=tuple([
        spec._replace(near_bytes=300, far_bytes_per_ns=0.1) for spec in table(many, many).specs
    ]))  # fmt: skip
    assert stages([100] * 8, 0, 0, slow) == ([0, 4, 8], 8000.0)  # a cache has less than the weights of a rank
    assert stages([100] * 8, 0, 0, slow, (), 0, [50] * 8) == ([0, 4, 8], 400.0)
