"""A suite runs the jobs of its file that are not done, and survives those that fail."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.made_up_rows import row
from veca.probe.report import read_report
from veca.probe.rows import Row
from veca.probe.suite import Job, Runner, SuiteError, is_done, read_suite, run_suite
from veca.runtime.distributed import Ranks

ROOT = Path(__file__).parents[2]

ENTRY = {"task": "knn", "data": "pets", "model": "tiny"}


def written(folder: Path, content: Any) -> Path:
    """A suite on disk; a list is that of its jobs."""
    content = {"jobs": content} if isinstance(content, list) else content
    path = folder / "suite.toml"
    path.write_text(content if isinstance(content, str) else toml(content), "utf-8")
    return path


def toml(content: dict[str, Any]) -> str:
    """Inline TOML of plain values: JSON, but for colons between keys and values."""
    return "".join(f"{key} = {inline(value)}\n" for key, value in content.items())


def inline(value: Any) -> str:
    """One value in TOML."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value)


def job(**changes: Any) -> Job:
    """A job with little in it."""
    return Job(**ENTRY | changes)


TOML = """
[defaults]
model = "runs/tiny"
teacher = "efficientnet-lite2"
budgets = [64, 8, 8]
ffn = [1, 0.5]

[[jobs]]
task = ["knn", "logistic"]
data = "data/pets"
resolution = 128
seeds = [0, 1]

[[jobs]]
task = "segmentation"
data = "voc2012=data/VOC2012"
model = "runs/other"
baseline = "runs/tiny"
resolutions = [256, 512]
allow-partial = true
protocol = "paper"
feature = "patches"
"""


def test_a_toml_file_gives_every_combination_of_its_lists(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "teacher": "efficientnet-lite2", "budgets": (8, 64), "ffn": (0.5, 1.0)
    }  # fmt: skip
    first = [
        Job(task=task, data="data/pets", model="runs/tiny", resolution=128, seed=seed, **shared)
        for task in ("knn", "logistic")
        for seed in (0, 1)
    ]
    second = [
        Job(
            task="segmentation",
            data="voc2012=data/VOC2012",
            model="runs/other",
            baseline=("runs/tiny",),
            resolution=side,
            allow_partial=True,
            protocol="paper",
            feature="patches",
            **shared,
        )
        for side in (256, 512)
    ]
    found = read_suite(written(tmp_path, TOML))
    assert sorted(found, key=repr) == sorted([*first, *second], key=repr)
    assert found[-2:] == second


def test_a_job_that_comes_twice_runs_once(tmp_path: Path) -> None:
    content = [ENTRY, {**ENTRY, "seed": [0, 1]}, ENTRY]
    assert read_suite(written(tmp_path, content)) == [job(), job(seed=1)]


def test_further_sets_belong_to_one_job_in_their_order(tmp_path: Path) -> None:
    also = ["imagenet-v2=b", "imagenet-real=a"]
    (found,) = read_suite(written(tmp_path, [{**ENTRY, "also": also}]))
    assert found.also == tuple(also)


def test_baselines_of_a_job_keep_their_order_and_one_needs_no_list(tmp_path: Path) -> None:
    several = {**ENTRY, "baseline": ["local", "full", "local"]}
    assert read_suite(written(tmp_path, [several])) == [job(baseline=("local", "full"))]
    one = {**ENTRY, "baseline": "full"}
    assert read_suite(written(tmp_path, [one])) == [job(baseline=("full",))]


def test_a_field_of_a_job_beats_the_default(tmp_path: Path) -> None:
    content = {"defaults": {"model": "a", "seed": [1, 2]}, "jobs": [{**ENTRY, "seeds": 5}]}
    assert read_suite(written(tmp_path, content)) == [job(seed=5)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "dance"}, "task is 'dance'; it must be one of linear, knn"),
        ({"task": ["knn", "dance"]}, "task is 'dance'"),
        ({"data": 5}, "data is 5; it must be a folder"),
        ({"model": ""}, "model is ''"),
        ({"model": []}, "model is an empty list"),
        ({"budgets": "all"}, "budgets is 'all'; it must be a list of whole numbers"),
        ({"budgets": 8}, "budgets is 8"),
        ({"budgets": []}, "budgets is \\[\\]"),
        ({"budgets": [8, 0]}, "budgets is \\[8, 0\\]"),
        ({"budgets": [True]}, "budgets is \\[True\\]"),
        ({"ffn": [1.5]}, "ffn is \\[1.5\\]; it must be a list of shares"),
        ({"ffn": [True]}, "ffn is \\[True\\]"),
        ({"resolution": 12.5}, "resolution is 12.5"),
        ({"resolutions": [256, "x"]}, "resolution is 'x'; it must be a whole number"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"seed": False}, "seed is False"),
        ({"teacher": ["a", "b"]}, "teacher is \\['a', 'b'\\]; it must be the name"),
        ({"baseline": []}, "baseline is \\[\\]; it must be the name of a model, or a list"),
        ({"baseline": ["a", 5]}, "baseline is \\['a', 5\\]"),
        ({"allow_partial": 1}, "allow_partial is 1; it must be true or false"),
        ({"also": "v2=x"}, "also is 'v2=x'; it must be a list of data sets, each NAME=FOLDER"),
        ({"also": []}, "also is \\[\\]"),
        ({"also": [""]}, "also is \\[''\\]"),
    ],
)
def test_a_wrong_value_is_an_error_with_job_and_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, [ENTRY, {**ENTRY, **change}])
    with pytest.raises(SuiteError, match=f"job 2 of .*suite.toml: {words}") as caught:
        read_suite(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{**ENTRY, "budget": [8]}], "job 1 .*unknown field 'budget'; the fields are task, "),
        ([{**ENTRY, "seed": 1, "seeds": [2]}], "job 1 of .* has seed twice"),
        ([{"task": "knn", "model": "a"}], "job 1 of .* has no data; add it"),
        ([3], "job 1 of .* is 3"),
        ({"jobs": []}, "has the entries jobs; it needs"),
        ({"job": [ENTRY]}, "has the entries job; it needs"),
        ({"defaults": {"color": 1}, "jobs": [ENTRY]}, "defaults. of .*unknown field 'color'"),
        ("a = ", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_suite_is_refused_with_what_to_do(
    tmp_path: Path, content: Any, words: str
) -> None:
    with pytest.raises(SuiteError, match=words):
        read_suite(written(tmp_path, content))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suite(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/results/*/suite.toml")), ids=str)
def test_the_suites_of_our_results_are_readable(path: Path) -> None:
    assert len(read_suite(path)) > 10


def test_the_name_of_a_job_says_what_it_runs() -> None:
    assert job().name == "knn of tiny on pets, seed 0"
    name = job(resolution=128, protocol="paper", seed=3).name
    assert name == "knn of tiny on pets at 128 px, paper, seed 3"


CPU = torch.device("cpu")
JOBS = [job(seed=seed) for seed in (0, 1, 2)]


class Bench:
    """Runs jobs by making up their rows."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ran: list[Job] = []
        self.lines: list[str] = []
        self.weights = "1"
        self.broken: set[int] = set()
        self.absent: set[int] = set()
        self.killed: set[int] = set()
        self.runner = Runner(
            expect=self.expect,
            run=self.run,
            ranks=ranks or Ranks(device=CPU),
            log=self.lines.append,
        )

    def expect(self, job: Job) -> list[Mapping[str, Any]]:
        if job.seed in self.absent:
            raise ValueError("the data set is missing.")
        return [{"seed": job.seed, "weights": self.weights, "budget": budget} for budget in (8, 16)]

    def run(self, job: Job) -> list[Row]:
        if job.seed in self.broken:
            raise OSError("the disk is full.")
        if job.seed in self.killed:
            raise KeyboardInterrupt
        self.ran.append(job)
        return [row(**one) for one in self.expect(job)]


def test_done_jobs_are_not_run_again_and_their_rows_stay(tmp_path: Path) -> None:
    bench = Bench()
    assert run_suite(JOBS[:2], tmp_path, bench.runner).ran == JOBS[:2]
    second = run_suite(JOBS, tmp_path, bench.runner)
    assert (second.ran, second.skipped) == (JOBS[2:], JOBS[:2])
    assert bench.ran == JOBS
    assert len(read_report(tmp_path)) == 2 * len(JOBS)
    assert "job 1 of 3: knn of tiny on pets, seed 0: already done" in bench.lines
    bench.weights = "2"
    assert run_suite(JOBS, tmp_path, bench.runner).ran == JOBS


def test_a_job_is_done_only_with_all_of_its_rows() -> None:
    expected = [{"budget": 8, "seed": 1}, {"budget": 16, "seed": 1}]
    rows = [row(budget=8, seed=1), row(budget=16, seed=0)]
    assert not is_done(expected, rows)
    assert is_done(expected, [*rows, row(budget=16, seed=1)])


def test_a_job_that_cannot_run_or_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    bench = Bench()
    bench.absent, bench.broken = {0}, {1}
    found = run_suite(JOBS, tmp_path, bench.runner)
    assert found.ran == JOBS[2:]
    assert found.failed == {JOBS[0]: "the data set is missing.", JOBS[1]: "the disk is full."}
    assert bench.lines[0] == f"{JOBS[0].name}: cannot be run: the data set is missing."
    assert f"{JOBS[1].name}: failed: the disk is full." in bench.lines
    bench.absent, bench.broken = set(), set()
    assert run_suite(JOBS, tmp_path, bench.runner).ran == JOBS[:2]


def test_a_killed_suite_keeps_what_was_done(tmp_path: Path) -> None:
    bench = Bench()
    bench.killed = {1}
    with pytest.raises(KeyboardInterrupt):
        run_suite(JOBS, tmp_path, bench.runner)
    assert run_suite(JOBS, tmp_path, Bench().runner).skipped == JOBS[:1]


class SecondRank(Ranks):
    """Rank 1 of 2, which received some states."""

    states: Any = None

    def broadcast_object(self, value: Any) -> Any:
        assert value is None
        return SecondRank.states


def test_other_ranks_do_what_the_first_one_found_and_write_nothing(tmp_path: Path) -> None:
    second = Bench(SecondRank(rank=1, world_size=2, device=CPU))
    SecondRank.states = [(False, "the data set is missing."), (True, None), (False, None)]
    found = run_suite(JOBS, tmp_path, second.runner)
    assert (list(found.failed), found.skipped) == (JOBS[:1], JOBS[1:2])
    assert found.ran == second.ran == JOBS[2:]
    assert list(tmp_path.iterdir()) == []
    second.broken = {2}  # no rank continues alone when one fails
    with pytest.raises(OSError, match="the disk is full"):
        run_suite(JOBS, tmp_path, second.runner)
