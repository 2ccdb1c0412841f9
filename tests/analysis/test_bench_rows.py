"""Lines of a benchmark: who is compared with whom."""

import json
from dataclasses import replace

import pytest

from tests.analysis.made_up import TWIN, measured, plain, rows, veca
from veca.analysis.benchmark import RIVALS, Contender, Row, rival_of, rows_of

EVERYBODY = [veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), TWIN]


def line(found: list[Row], contender: Contender) -> Row:
    """The line of one contender."""
    return next(row for row in found if row.contender == contender)


@pytest.mark.parametrize(
    ("contender", "rivals"),
    [
        (veca(2), (TWIN, plain(2), veca(4), None)),
        (veca(4), (TWIN, plain(4), None, None)),
        (veca(2, 0.25), (TWIN, None, veca(4), None)),
        (plain(2), (TWIN, None, None, None)),
        (TWIN, (None, None, None, None)),
    ],
)
def test_each_contender_meets_the_rivals_that_make_sense(
    contender: Contender, rivals: tuple[Contender | None, ...]
) -> None:
    assert tuple(rival_of(contender, name, EVERYBODY) for name in RIVALS) == rivals


def in_bf16(contender: Contender) -> Contender:
    """The same in half precision."""
    return replace(contender, precision="bf16")


def test_rivals_have_the_same_precision_but_for_the_contender_itself_in_fp32() -> None:
    among = [*EVERYBODY, *map(in_bf16, EVERYBODY)]
    found = {name: rival_of(in_bf16(veca(2)), name, among) for name in RIVALS}
    same = {"twin": TWIN, "plain": plain(2), "whole": veca(4)}
    assert found == {name: in_bf16(rival) for name, rival in same.items()} | {"fp32": veca(2)}
    assert rival_of(veca(2), "twin", among) == TWIN
    assert rival_of(veca(2), "fp32", among) is None
    assert rival_of(in_bf16(TWIN), "fp32", among) == TWIN


def test_a_ratio_above_one_means_faster_than_the_rival() -> None:
    found = rows({veca(2): 10.0, TWIN: 25.0, plain(2): 8.0})
    speedups = line(found, veca(2)).speedups
    assert speedups["twin"].median == 2.5
    assert speedups["plain"].median == 0.8
    assert set(speedups) == {"twin", "plain"}


def test_time_is_that_of_one_image_and_memory_that_of_a_call() -> None:
    (row,) = rows_of(32, 64, 4, [measured(veca(2), 40.0, 80.0, 60.0, megabytes=12.5)])
    assert row.milliseconds == (12.5, 15.0, 17.5)
    assert row.peak_mb == 12.5
    assert row.rounds == 3


def test_a_contender_that_could_not_run_has_a_line_and_no_ratios() -> None:
    failed = measured(TWIN, megabytes=None, note="out of memory")
    found = rows_of(32, 64, 1, [measured(veca(2), 1.0), failed])
    row = line(found, TWIN)
    assert row.milliseconds is None
    assert row.speedups == {}
    assert row.note == "out of memory"
    assert "twin" not in line(found, veca(2)).speedups


def test_json_has_every_field_whoever_it_is() -> None:
    found = rows(dict.fromkeys(EVERYBODY, 2.0))
    parsed = [json.loads(json.dumps(row.as_json())) for row in found]
    assert len({tuple(item) for item in parsed}) == 1
    twin = next(item for item in parsed if item["contender"] == "twin")
    assert twin["budget"] is None
    assert twin["speedup"]["plain"] is None
