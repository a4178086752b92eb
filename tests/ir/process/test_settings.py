"""Settings: from the environment, overridden in a block and in one thread, and refused with the valid values."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernmill.ir import SETTINGS, Context, SettingError, check_environment, debug, setting

ROOT = Path(__file__).resolve().parents[3]


def test_a_context_overrides_and_restores() -> None:
    before = setting("SEED")
    with Context(SEED=5, DEBUG=1):
        assert (setting("SEED"), debug()) == (5, 1)
        with Context(SEED=6):
            assert (setting("SEED"), debug()) == (6, 1)
        assert setting("SEED") == 5
    assert setting("SEED") == before


def test_a_context_holds_in_its_thread_only() -> None:
    seen: list[object] = []
    with Context(SEED=77):
        thread = threading.Thread(target=lambda: seen.append(setting("SEED")))
        thread.start()
        thread.join()
    assert seen != [77]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"NOPE": 1}, "Context: 'NOPE' is not a setting. Known settings: BEAM, BEAM_SECONDS, CACHE, CACHE_DIR,"),
        ({"DEBUG": 7}, "Context: '7' is not a value of DEBUG. Valid: 0 to 6."),
        ({"DEBUG": "x"}, "Context: 'x' is not a value of DEBUG. Valid: 0 to 6."),
        ({"CACHE": "yes"}, "Context: 'yes' is not a value of CACHE. Valid: 0, 1 or ro."),
    ],
)
def test_a_bad_name_or_value_prints_the_valid_ones(values: dict[str, int | str], message: str) -> None:
    with pytest.raises(SettingError) as error, Context(**values):
        pass
    assert str(error.value).startswith(message)


def test_an_error_in_a_block_restores_too() -> None:
    before = setting("SEED")
    with pytest.raises(ZeroDivisionError), Context(SEED=9):
        raise ZeroDivisionError
    assert setting("SEED") == before


@pytest.mark.parametrize(
    ("value", "printed"), [("3", "3"), ("", "0"), ("9", "environment: '9' is not a value of DEBUG. Valid: 0 to 6.")]
)
def test_the_environment_is_read(value: str, printed: str) -> None:
    code = (
        "from kernmill.ir import debug, check_environment, SettingError\n"
        "try:\n check_environment(); print(debug())\n"
        "except SettingError as error: print(error)"
    )
    env = {**os.environ, "DEBUG": value, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert printed in run.stdout + run.stderr


def test_defaults_are_values_of_their_rows() -> None:
    check_environment()
    for name, row in SETTINGS.items():
        assert row.name == name
        assert row.parse(str(row.default)) == row.default
        assert row.meaning
        assert row.valid


def test_what_shapes_code_or_results_is_captured() -> None:
    captured = {name for name, row in SETTINGS.items() if row.is_captured}
    assert captured == {
        "DEVICE", "OVERRIDE", "BEAM", "TRY", "THREADS", "CHECK", "QUANT_ACT", "QUANT_FORM", "TARGET", "PIN", "PLACE",
    }  # fmt: skip


def test_a_wrong_name_is_refused_where_it_is_written() -> None:
    """Named regression: `Context(DEFAULT_FLOAT=..)` without `with` did nothing, and said nothing."""
    with pytest.raises(SettingError, match=r"^Context: 'DEFAULT_FLOAT' is not a setting"):
        Context(DEFAULT_FLOAT="float64")
    with pytest.raises(SettingError, match=r"^Context: 'x' is not a value of DEBUG"):
        Context(DEBUG="x")
