"""What two ranks gain over one: the command compares a job with one rank of it."""

from __future__ import annotations

import pytest

from bench.ranks import main
from tests.kernmill.dist.ranks import job, needs_mpi


def test_one_rank_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "start it with mpirun -n 2" in capsys.readouterr().err


@needs_mpi
def test_a_sum_and_a_step() -> None:
    done = job("import sys; from bench.ranks import main; sys.exit(main())", 2, "--rows", "sum,mnist", "--rounds", "1")
    first, second = done.stdout.splitlines()
    assert first.startswith("sum of 16 MB: ")
    assert second.startswith("MNIST step: 256 rows on one rank ")
