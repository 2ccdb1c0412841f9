"""What is said about made-up numbers."""

import pytest

from tests.analysis.made_up import TWIN, measured, plain, rows, veca
from veca.analysis.bench_report import exponent, growths, remarks, weak_spots
from veca.analysis.benchmark import rows_of


@pytest.mark.parametrize("power", [0.0, 1.0, 1.1, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [64.0, 256.0, 1024.0]
    assert exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power)


def test_growth_is_fitted_over_large_images_where_there_are_two() -> None:
    found = []
    for side, time in ((256, 100.0), (512, 110.0), (1024, 440.0), (2048, 1760.0)):
        found += rows({veca(2): time}, side)
    (growth,) = growths(found)
    assert growth.name == "VECA, 2 cores"
    assert growth.exponent == pytest.approx(1.0)
    assert growth.resolutions == (512, 1024, 2048)


def test_growth_is_fitted_over_all_images_where_few_are_large() -> None:
    found = [*rows({TWIN: 1.0}, 128), *rows({TWIN: 16.0}, 256), *rows({TWIN: 256.0}, 512)]
    (growth,) = growths(found)
    assert growth.exponent == pytest.approx(2.0)
    assert growth.resolutions == (128, 256, 512)


def test_one_resolution_has_no_growth() -> None:
    assert growths(rows({veca(2): 1.0, TWIN: 2.0})) == []


def test_a_contender_that_could_not_run_is_left_out_of_the_fit() -> None:
    found = [*rows({TWIN: 1.0}, 512), *rows({TWIN: 16.0}, 1024)]
    failed = rows_of(2048, 16384, 1, [measured(TWIN, note="out of memory")])
    assert growths(found + failed)[0].resolutions == (512, 1024)


def test_cases_that_lose_are_named_with_their_ratio() -> None:
    (sentence,) = weak_spots(rows({veca(2): 8.0, veca(4): 12.5, TWIN: 10.0}, 256))
    assert sentence == (
        "256 px, against full attention, slower: VECA, 4 cores (0.80x, 0.80 to 0.80)."
    )


def test_a_case_whose_rounds_go_both_ways_is_no_win() -> None:
    found = [measured(veca(2), 9.0, 10.0, 11.0), measured(TWIN, 10.0, 10.0, 10.0)]
    (sentence,) = weak_spots(rows_of(256, 256, 1, found))
    assert "no clear difference: VECA, 2 cores (1.00x, 0.95 to 1.06)" in sentence


def test_a_folded_form_that_does_not_pay_is_named() -> None:
    (sentence,) = weak_spots(rows({veca(2): 8.0, plain(2): 6.0}, 64))
    assert sentence.startswith("64 px, against the plain form, slower: VECA, 2 cores (0.75x")


def test_more_memory_than_full_attention_is_no_win() -> None:
    found = [
        measured(veca(2), 1.0, megabytes=50.0),
        measured(veca(4), 1.0, megabytes=30.0),
        measured(TWIN, 2.0, megabytes=30.0),
    ]
    (sentence,) = weak_spots(rows_of(256, 256, 1, found))
    assert sentence == ("256 px: more memory than full attention (30 MB): VECA, 2 cores (50 MB).")


def test_a_clean_win_is_said_so() -> None:
    (sentence,) = weak_spots(rows({veca(2): 1.0, plain(2): 2.0, TWIN: 3.0}))
    assert "faster than full attention and than its plain form in every case" in sentence


def test_where_nothing_is_folded_the_ratio_is_called_noise() -> None:
    found = [measured(veca(4), 10.0, 10.0), measured(plain(4), 9.9, 10.0)]
    lines = rows_of(256, 256, 1, found)
    assert "against the plain form" not in " ".join(weak_spots(lines))
    (remark,) = remarks(lines)
    assert "same program and their ratio is noise: VECA, 4 cores (0.99x" in remark


def test_what_a_budget_is_worth_is_told_in_pairs_and_in_time() -> None:
    (remark,) = remarks(rows({veca(2): 9.0, veca(4): 10.0}, 512))
    assert remark == (
        "512 px: 2 cores instead of 4 change the pairs by -50 % and the time by -10 %."
    )
