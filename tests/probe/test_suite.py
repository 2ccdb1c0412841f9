"""A suite runs the jobs of its file that are not done, and survives those that fail."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.fixtures import context_in, row
from veca.probe.report import read_report
from veca.probe.rows import ProbeError, Row
from veca.probe.run import Evaluator, Job
from veca.probe.suite import is_done, read_suite, run_suite
from veca.runtime.distributed import Ranks

ROOT = Path(__file__).parents[2]

ENTRY = {"task": "knn", "data": "pets", "model": "tiny"}


def entry(**fields: str) -> str:
    """A job of a file, with fields in TOML."""
    usual = {"task": '"knn"', "data": '"pets"', "model": '"tiny"'}
    lines = [f"{name} = {text}" for name, text in (usual | fields).items()]
    return "\n".join(["[[jobs]]", *lines, ""])


def read(folder: Path, text: str) -> list[Job]:
    """The jobs of a file with this text."""
    path = folder / "suite.toml"
    path.write_text(text, "utf-8")
    return read_suite(path)


def job(**changes: Any) -> Job:
    """A job with little in it."""
    return Job(**ENTRY | changes)


TOML = """
[defaults]
model = "runs/tiny"
budgets = [64, 8, 8]
ffn = [1, 0.5]

[[jobs]]
task = ["knn", "logistic"]
data = "data/pets"
seeds = [0, 1]

[[jobs]]
task = "segmentation"
data = "voc2012=data/VOC2012"
model = "runs/other"
resolutions = [256, 512]
allow-partial = true
"""


def test_a_toml_file_gives_every_combination_of_its_lists(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"budgets": (8, 64), "ffn": (0.5, 1.0)}
    first = [
        Job(task=task, data="data/pets", model="runs/tiny", seed=seed, **shared)
        for task in ("knn", "logistic")
        for seed in (0, 1)
    ]
    second = [
        Job(task="segmentation", data="voc2012=data/VOC2012", model="runs/other",
            resolution=side, allow_partial=True, **shared)
        for side in (256, 512)
    ]  # fmt: skip
    found = read(tmp_path, TOML)
    assert sorted(found, key=repr) == sorted([*first, *second], key=repr)
    assert found[-2:] == second


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        (entry() + entry(seed="[0, 1]") + entry(), [job(), job(seed=1)]),  # each job once
        (entry(also='["v2=b", "real=a"]'), [job(also=("v2=b", "real=a"))]),
        (entry(baseline='["local", "full", "local"]'), [job(baseline=("local", "full"))]),
        (entry(baseline='"full"', protocol='"paper"'), [job(baseline=("full",), protocol="paper")]),
        ("defaults = { teacher = 'a', seed = [1, 2] }\n" + entry(seeds="5"),
         [job(teacher="a", seed=5)]),
    ],
)  # fmt: skip
def test_a_job_has_its_own_fields_and_the_defaults(
    tmp_path: Path, text: str, jobs: list[Job]
) -> None:
    assert read(tmp_path, text) == jobs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (entry(task='["knn", "dance"]'), "job 1 of .*: task is 'dance'; it must be one of linear"),
        (entry() + entry(data="5"), "job 2 of .*: data is 5; it must be a text, or a list of them"),
        (entry(model="''"), "model is ''"),
        (entry(model="[]"), r"model is \[\]"),
        (entry(budgets='"all"'), "budgets is 'all'; it must be a whole number, or a list of them"),
        (entry(budgets="[true]"), r"budgets is \[True\]"),
        (entry(ffn="[]"), r"ffn is \[\]; it must be a number, or a list of them"),
        (entry(teacher='["a", "b"]'), r"teacher is \['a', 'b'\]; it must be a text\."),
        (entry(allow_partial="1"), "allow_partial is 1; it must be true or false"),
        (entry(budget="[8]"), "has budget as the unknown field 'budget'; the fields are task, "),
        (entry(seed="1", seeds="[2]"), "has seed twice"),
        ("jobs = [3]", "job 1 of .* is 3"),
        ("jobs = []", "has the entries jobs; it needs"),
        ("[[job]]\nseed = 1", "has the entries job; it needs"),
        ("[[jobs]]\ntask = 'knn'", "job 1 of .* has no data; add it"),
        ("defaults = { color = 1 }\n" + entry(), "defaults. of .*unknown field 'color'"),
        ("a = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_suite_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/results/*/suite.toml")), ids=str)
def test_the_suites_of_our_results_are_readable(path: Path) -> None:
    assert len(read_suite(path)) > 10


CPU = torch.device("cpu")
JOBS = [job(seed=seed) for seed in (0, 1, 2)]


class FakeEvaluator(Evaluator):
    """Runs jobs by making up their rows."""

    def __init__(self, folder: Path, ranks: Ranks | None = None) -> None:
        super().__init__(ctx=context_in(folder, ranks or Ranks(device=CPU)), out=folder)
        self.ran: list[Job] = []
        self.weights = "1"
        self.absent: set[int] = set()
        self.errors: dict[int, BaseException] = {}

    def expect(self, job: Job) -> list[dict[str, Any]]:
        if job.seed in self.absent:
            raise ValueError("the dataset is missing.")
        return [{"seed": job.seed, "weights": self.weights, "budget": budget} for budget in (8, 16)]

    def run_job(self, job: Job, seeds: Any = None) -> list[Row]:
        assert seeds is None
        if job.seed in self.errors:
            raise self.errors[job.seed]
        self.ran.append(job)
        return [row(**one) for one in self.expect(job)]


def test_done_jobs_are_not_run_again_and_their_rows_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veca")
    fake = FakeEvaluator(tmp_path)
    assert run_suite(JOBS[:2], tmp_path, fake).ran == JOBS[:2]
    second = run_suite(JOBS, tmp_path, fake)
    assert (second.ran, second.skipped) == (JOBS[2:], JOBS[:2])
    assert fake.ran == JOBS
    assert len(read_report(tmp_path)) == 2 * len(JOBS)
    assert "job 1 of 3: knn of tiny on pets, seed 0: already done" in caplog.messages
    fake.weights = "2"
    assert run_suite(JOBS, tmp_path, fake).ran == JOBS


def test_a_job_is_done_only_with_all_of_its_rows() -> None:
    expected: list[Mapping[str, Any]] = [{"budget": 8, "seed": 1}, {"budget": 16, "seed": 1}]
    rows = [row(budget=8, seed=1), row(budget=16, seed=0)]
    assert not is_done(expected, rows)
    assert is_done(expected, [*rows, row(budget=16, seed=1)])


def test_a_job_that_cannot_run_or_fails_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeEvaluator(tmp_path)
    fake.absent, fake.errors = {0}, {1: OSError("the disk is full.")}
    found = run_suite(JOBS, tmp_path, fake)
    assert found.ran == JOBS[2:]
    assert found.failed == {JOBS[0]: "the dataset is missing.", JOBS[1]: "the disk is full."}
    assert caplog.messages[0] == f"{JOBS[0].name}: cannot be run: the dataset is missing."
    assert f"{JOBS[1].name}: failed: the disk is full." in caplog.messages
    fake.absent, fake.errors = set(), {1: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_suite(JOBS, tmp_path, fake)
    last = run_suite(JOBS, tmp_path, FakeEvaluator(tmp_path))
    assert (last.ran, last.skipped) == ([JOBS[1]], [JOBS[0], JOBS[2]])


class SecondRank(Ranks):
    """Rank 1 of 2, which receives some states."""

    def broadcast_object(self, value: Any) -> Any:
        assert value is None
        return [(False, "the dataset is missing."), (True, None), (False, None)]


def test_other_ranks_follow_the_first_one_and_write_nothing(tmp_path: Path) -> None:
    second = FakeEvaluator(tmp_path, SecondRank(rank=1, world_size=2, device=CPU))
    found = run_suite(JOBS, tmp_path, second)
    assert (list(found.failed), found.skipped) == (JOBS[:1], JOBS[1:2])
    assert found.ran == second.ran == JOBS[2:]
    assert list(tmp_path.iterdir()) == []
    second.errors = {2: OSError("the disk is full")}  # no rank continues alone when one fails
    with pytest.raises(OSError, match="the disk is full"):
        run_suite(JOBS, tmp_path, second)
