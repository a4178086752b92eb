"""What two ranks gain over one: the command compares a job with one rank of it."""

from __future__ import annotations

import pytest

from bench.ranks import main
from tests.kernmill.dist.ranks import job, needs_mpi


def test_one_rank_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "start it with mpirun -n 2" in capsys.readouterr().err


def line_of(row: str) -> str:
    program = "import sys; from bench.ranks import main; sys.exit(main())"
    done = job(program, 2, "--rows", row, "--rounds", "1", MPIEXEC_TIMEOUT="500")
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_mpi
def test_a_sum() -> None:
    assert line_of("sum").startswith("sum of 16 MB: ")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(("row", "start"), [("mnist", "MNIST step: 256 rows"), ("story", "story step: 32 rows")])
def test_a_step(row: str, start: str) -> None:
    assert line_of(row).startswith(start)
