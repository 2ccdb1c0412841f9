"""A whole benchmark of a very small model; nothing here depends on how fast it is."""

import pytest
import torch

from tests.analysis.made_up import TINY, TWIN, plain, veca
from veca.analysis import benchmark as bench
from veca.analysis.bench_report import as_json, remarks
from veca.analysis.benchmark import BenchConfig, Contender, Report, Setup, run_bench
from veca.runtime.timing import Effort

CONFIG = BenchConfig(
    model="tiny",
    backbone=TINY,
    resolutions=(32, 64),
    budgets=(2, 4),
    shares=(0.25, 1.0),
    threads=1,
    precisions=("fp32",),
    effort=Effort(rounds=2, seconds=0.0),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Contender]]:
    """Whose memory was asked for; full attention at 64 pixels has too little."""
    found: list[tuple[int, Contender]] = []

    def peak_bytes(setup: Setup, contender: Contender) -> int | None:
        found.append((setup.resolution, contender))
        return None if (setup.resolution, contender) == (64, TWIN) else 5_000_000

    monkeypatch.setattr(bench, "peak_bytes", peak_bytes)
    return found


def test_every_contender_is_measured_at_every_resolution(
    asked: list[tuple[int, Contender]],
) -> None:
    told: list[str] = []
    threads = torch.get_num_threads()
    report = run_bench(CONFIG, "the command", told.append)
    expected = [veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), TWIN]
    for side in (32, 64):
        here = [row for row in report.rows if row.resolution == side]
        assert [row.contender for row in here] == expected
        assert [pair[1] for pair in asked if pair[0] == side] == [row.contender for row in here]
    assert report.machine.threads == 1
    assert torch.get_num_threads() == threads
    assert report.command == "the command"
    assert report.started <= report.finished
    assert all(line.startswith("tiny, ") for line in told)
    check_rows(report)


def check_rows(report: Report) -> None:
    """Every line has numbers, but for the case that memory did not suffice for."""
    for row in report.rows:
        if (row.resolution, row.contender) == (64, TWIN):
            assert row.note == "out of memory"
            assert row.milliseconds is None
            assert row.peak_mb is None
        else:
            assert row.milliseconds is not None
            assert row.milliseconds.median > 0
            assert row.rounds == 2
            assert row.peak_mb == 5.0
            assert row.work.gflops > 0


def test_memory_is_left_out_if_it_is_not_wanted(asked: list[tuple[int, Contender]]) -> None:
    fields = {**vars(CONFIG), "memory": False, "resolutions": (32,), "shares": (1.0,)}
    report = run_bench(BenchConfig(**fields), "", lambda _: None)
    assert asked == []
    assert {row.peak_mb for row in report.rows} == {None}


def test_both_precisions_run_in_turns_and_their_ratio_is_told(
    asked: list[tuple[int, Contender]],
) -> None:
    fields = {**vars(CONFIG), "precisions": ("fp32", "bf16"), "resolutions": (32,)}
    report = run_bench(BenchConfig(**fields), "", lambda _: None)
    assert len(asked) == len(report.rows) == 14
    for row in report.rows:
        half = row.contender.precision == "bf16"
        assert row.as_json()["precision"] == row.contender.precision
        assert row.name.endswith(", bf16") == half
        assert ("fp32" in row.speedups) == half
    (told,) = [remark for remark in remarks(report.rows) if "against the same in fp32" in remark]
    assert "VECA, 2 cores, bf16 (" in told
    assert "full attention, bf16 (" in told


def test_the_report_says_what_its_rows_say(asked: list[tuple[int, Contender]]) -> None:
    report = run_bench(CONFIG, "", lambda _: None)
    assert asked
    told = as_json(report)
    assert {growth["name"] for growth in told["growth"]} == {
        row.name for row in report.rows if row.contender != TWIN
    }
    assert told["where_veca_does_not_win"]
