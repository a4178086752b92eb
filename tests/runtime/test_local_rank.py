"""The device of a rank, by the variables of its launcher."""

from __future__ import annotations

import pytest

from kernmill import Context
from kernmill.ir import text_hooks
from kernmill.runtime import device_list, devices_of_rank, local_rank, ops_python

LAUNCHERS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHERS, "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "SLURM_LOCALID"])
def test_each_launcher_says_the_rank(monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    assert local_rank.local_rank() == 0
    monkeypatch.setenv(launcher, "3")
    assert local_rank.local_rank() == 3


def test_mpirun_inside_of_a_job_of_slurm_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    assert local_rank.local_rank() == 1
    monkeypatch.setenv("MPI_LOCALRANKID", "none")
    assert local_rank.local_rank() == 0


@pytest.mark.parametrize(
    ("rank", "given", "names"),
    [
        ("0", "CUDA", "CUDA"),
        ("1", "cuda", "cuda:1"),
        ("5", "CUDA", "CUDA:1"),
        ("3", "CUDA:0,LLVM", "CUDA:0,LLVM"),
        ("2", "CUDA?mib=8,LLVM", "CUDA:2?mib=8,LLVM"),
        ("2", "", ""),
    ],
)
def test_ranks_take_devices_in_turn(monkeypatch: pytest.MonkeyPatch, rank: str, given: str, names: str) -> None:
    monkeypatch.setenv("SLURM_LOCALID", rank)
    assert local_rank.spread(given, lambda base: [0, 1, 2, 4][: 4 if base == "CUDA" else 1]) == names


def test_the_setting_of_the_environment_is_spread_and_a_choice_of_the_program_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops_python.PythonDevice, "devices", classmethod(lambda cls: [0, 1]))
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert text_hooks["DEVICE"]("PYTHON") == "PYTHON:1"
    assert devices_of_rank("PYTHON,LLVM,NO_SUCH") == "PYTHON:1,LLVM,NO_SUCH"
    with Context(DEVICE="PYTHON"):
        assert device_list() == ("PYTHON",)
