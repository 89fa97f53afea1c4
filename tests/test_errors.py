"""An error about a name gives the nearest valid one."""

from __future__ import annotations

import pytest

from harness.run.errors import nearest


def test_the_nearest_name_and_all_known_ones_are_given() -> None:
    error = nearest("method", "torch-sav", ["torch-save", "dcp"], "in framework pytorch")
    assert str(error) == (
        "unknown method 'torch-sav' in framework pytorch; did you mean 'torch-save'? "
        "(known: dcp, torch-save)"
    )


@pytest.mark.parametrize("given", ["zzz", ""])
def test_nothing_is_suggested_where_nothing_is_near(given: str) -> None:
    assert (
        str(nearest("suite", given, ["smoke", "bench"]))
        == f"unknown suite {given!r} (known: bench, smoke)"
    )


def test_a_wrong_capital_is_a_near_miss() -> None:
    assert "did you mean 'DCP'?" in str(nearest("method", "dcp", ["DCP", "npz"]))


def test_there_may_be_nothing_to_choose_from() -> None:
    assert str(nearest("option", "crc", [])) == "unknown option 'crc' (known: none)"


def test_names_with_commas_are_told_how_to_give_several() -> None:
    error = nearest("method", "dcp,torch-save", ["torch-save", "dcp"])
    assert str(error) == "'dcp,torch-save' is no method; give the option once for each of them"
