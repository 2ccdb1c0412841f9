"""A suite runs what is not done, survives jobs that fail, and leaves a report of all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.made_up_rows import row
from veca.probe.rows import Row
from veca.probe.suite import Job, Runner, record_path, run_suite
from veca.runtime.distributed import Ranks

ALONE = Ranks(device=torch.device("cpu"))
JOBS = [Job(task="knn", data="pets", model="runs/tiny", seed=seed) for seed in (0, 1, 2)]


class Bench:
    """Runs jobs by writing them down."""

    def __init__(self, workers: Ranks = ALONE) -> None:
        self.ran: list[Job] = []
        self.told: list[str] = []
        self.weights = "1"
        self.broken: set[int] = set()
        self.absent: set[int] = set()
        self.runner = Runner(facts=self.facts, run=self.run, workers=workers, tell=self.told.append)

    def facts(self, job: Job) -> Mapping[str, Any]:
        if job.seed in self.absent:
            raise ValueError("the set is not there.")
        return {"weights": self.weights}

    def run(self, job: Job) -> list[Row]:
        if job.seed in self.broken:
            raise OSError("the disk is full.")
        self.ran.append(job)
        return [row(seed=job.seed, value=50.0 + job.seed)]


def test_done_jobs_are_not_run_again_and_their_rows_stay(tmp_path: Path) -> None:
    bench = Bench()
    first = run_suite(JOBS[:2], tmp_path, bench.runner)
    assert (first.ran, first.skipped) == (JOBS[:2], [])
    second = run_suite(JOBS, tmp_path, bench.runner)
    assert (second.ran, second.skipped) == (JOBS[2:], JOBS[:2])
    assert bench.ran == JOBS
    assert second.rows == [row(seed=seed, value=50.0 + seed) for seed in (0, 1, 2)]
    assert any("job 1 of 3: knn of runs/tiny on pets, seed 0: done before" in t for t in bench.told)


def test_other_weights_are_measured_again(tmp_path: Path) -> None:
    bench = Bench()
    run_suite(JOBS, tmp_path, bench.runner)
    bench.weights = "2"
    assert run_suite(JOBS, tmp_path, bench.runner).ran == JOBS


def test_a_job_that_cannot_run_or_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    bench = Bench()
    bench.absent, bench.broken = {0}, {1}
    found = run_suite(JOBS, tmp_path, bench.runner)
    assert found.ran == JOBS[2:]
    assert found.failed == {JOBS[0]: "the set is not there.", JOBS[1]: "the disk is full."}
    assert any("seed 0: cannot be run: the set is not there." in told for told in bench.told)
    assert any("seed 1: failed: the disk is full." in told for told in bench.told)
    bench.absent, bench.broken = set(), set()
    assert run_suite(JOBS, tmp_path, bench.runner).ran == JOBS[:2]


def test_what_cannot_be_run_is_told_before_the_first_job_runs(tmp_path: Path) -> None:
    bench = Bench()
    bench.absent = {2}
    run_suite(JOBS, tmp_path, bench.runner)
    assert "cannot be run" in bench.told[0]


def test_a_killed_suite_keeps_what_was_done(tmp_path: Path) -> None:
    bench = Bench()

    def killed(job: Job) -> list[Row]:
        if job.seed == 1:
            raise KeyboardInterrupt
        return bench.run(job)

    dying = Runner(facts=bench.facts, run=killed, workers=ALONE, tell=bench.told.append)
    with pytest.raises(KeyboardInterrupt):
        run_suite(JOBS, tmp_path, dying)
    assert run_suite(JOBS, tmp_path, bench.runner).skipped == JOBS[:1]


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"rows": [{}]}', '{"rows": 3}'])
def test_a_damaged_record_is_told_and_its_job_runs_again(tmp_path: Path, damage: str) -> None:
    bench = Bench()
    run_suite(JOBS, tmp_path, bench.runner)
    record_path(tmp_path, JOBS[1], {"weights": "1"}).write_text(damage, "utf-8")
    assert run_suite(JOBS, tmp_path, bench.runner).ran == [JOBS[1]]
    assert any("is damaged" in told for told in bench.told)
    assert run_suite(JOBS, tmp_path, bench.runner).ran == []


def test_a_record_says_which_job_it_is_of(tmp_path: Path) -> None:
    bench = Bench()
    run_suite(JOBS[:1], tmp_path, bench.runner)
    path = record_path(tmp_path, JOBS[0], {"weights": "1"})
    assert json.loads(path.read_text("utf-8"))["job"] == JOBS[0].as_json()


class Told(Ranks):
    """A second worker, to which the first one has said something."""

    said: Any = None

    def broadcast_object(self, value: Any) -> Any:
        assert value is None
        return Told.said


def test_of_several_workers_none_goes_on_alone_when_one_fails(tmp_path: Path) -> None:
    second = Bench(Told(rank=1, world_size=2, device=torch.device("cpu")))
    second.broken = {0}
    path = str(record_path(tmp_path, JOBS[0], {"weights": "1"}))
    Told.said = [{"path": path, "rows": None, "error": None}] * len(JOBS)
    with pytest.raises(OSError, match="the disk is full"):
        run_suite(JOBS, tmp_path, second.runner)
    assert second.ran == []


def test_other_workers_do_what_the_first_one_found_and_write_nothing(tmp_path: Path) -> None:
    second = Bench(Told(rank=1, world_size=2, device=torch.device("cpu")))
    second.absent = {0, 1, 2}  # it is not asked
    paths = [str(record_path(tmp_path, job, {"weights": "1"})) for job in JOBS]
    Told.said = [
        {"path": None, "rows": None, "error": "the set is not there."},
        {"path": paths[1], "rows": [row().as_json()], "error": None},
        {"path": paths[2], "rows": None, "error": None},
    ]
    found = run_suite(JOBS, tmp_path, second.runner)
    assert list(found.failed) == JOBS[:1]
    assert found.skipped == JOBS[1:2]
    assert found.ran == second.ran == JOBS[2:]
    assert list(tmp_path.iterdir()) == []
