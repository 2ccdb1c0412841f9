"""A suite's file says which jobs to run; a mistake in it is told by job and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from veca.probe.suite import FIELDS, Job, SuiteError, read_suite

ENTRY = {"task": "knn", "data": "pets", "model": "tiny"}


def written(folder: Path, content: Any, name: str = "suite.json") -> Path:
    """A suite on disk."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


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
    found = read_suite(written(tmp_path, TOML, "suite.toml"))
    assert sorted(found, key=repr) == sorted([*first, *second], key=repr)
    assert found[-2:] == second


def test_json_may_be_the_bare_list_and_a_job_that_comes_twice_runs_once(tmp_path: Path) -> None:
    content = [ENTRY, {**ENTRY, "seed": [0, 1]}, ENTRY]
    assert read_suite(written(tmp_path, content)) == [job(), job(seed=1)]


def test_further_sets_belong_to_one_job_in_their_order(tmp_path: Path) -> None:
    also = ["imagenet-v2=b", "imagenet-real=a"]
    (found,) = read_suite(written(tmp_path, [{**ENTRY, "also": also}]))
    assert found.also == tuple(also)
    assert found.as_json()["also"] == also
    assert job().as_json()["also"] == []


@pytest.mark.parametrize("name", ["baseline", "baselines"])
def test_baselines_of_a_job_keep_their_order_and_one_needs_no_list(
    tmp_path: Path, name: str
) -> None:
    several = {**ENTRY, name: ["local", "full", "local"]}
    (found,) = read_suite(written(tmp_path, [several]))
    assert found == job(baseline=("local", "full"))
    (found,) = read_suite(written(tmp_path, [{**ENTRY, name: "full"}]))
    assert found == job(baseline=("full",))
    assert found.as_json()["baseline"] == ["full"]


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
        ({"also": "v2=x"}, "also is 'v2=x'; it must be a list of sets, each NAME=FOLDER"),
        ({"also": []}, "also is \\[\\]"),
        ({"also": [""]}, "also is \\[''\\]"),
    ],
)
def test_a_wrong_value_is_told_by_job_and_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, [ENTRY, {**ENTRY, **change}])
    with pytest.raises(SuiteError, match=f"job 2 of .*suite.json: {words}") as caught:
        read_suite(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{**ENTRY, "budget": [8]}], "job 1 .*unknown field 'budget'.*did you mean budgets?"),
        ([{**ENTRY, "xyz": 1}], "job 1 .*unknown field 'xyz'; the fields are task, "),
        ([{**ENTRY, "seed": 1, "seeds": [2]}], "job 1 of .* gives seed twice"),
        ([{"task": "knn", "model": "a"}], "job 1 of .* has no data; add it"),
        ([3], "job 1 of .* is 3"),
        ({"jobs": []}, "has no jobs"),
        ({"jobs": {}}, "has no jobs"),
        ({"job": [ENTRY]}, "must hold `jobs`.*it holds job"),
        ("5", "it holds something else"),
        ({"defaults": {"color": 1}, "jobs": [ENTRY]}, "`defaults` of .*unknown field 'color'"),
        ("{", "is no JSON"),
    ],
)
def test_a_file_that_is_no_suite_is_refused_with_what_to_do(
    tmp_path: Path, content: Any, words: str
) -> None:
    with pytest.raises(SuiteError, match=words):
        read_suite(written(tmp_path, content))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suite(tmp_path / "none.toml")
    with pytest.raises(SuiteError, match=r"ends in \.toml or \.json"):
        read_suite(written(tmp_path, "", "suite.yaml"))
    with pytest.raises(SuiteError, match="is no TOML"):
        read_suite(written(tmp_path, "a = ", "suite.toml"))


CHANGES: list[dict[str, Any]] = [
    {"task": "linear"}, {"data": "cars"}, {"model": "base"}, {"teacher": "t"}, {"baseline": ("c",)},
    {"budgets": (8,)}, {"ffn": (0.5,)}, {"resolution": 160}, {"protocol": "paper"},
    {"feature": "f"}, {"seed": 1}, {"allow_partial": True}, {"also": ("v2=x",)},
]  # fmt: skip


def test_everything_in_a_job_is_part_of_its_identity() -> None:
    assert {name for change in CHANGES for name in change} == set(FIELDS)
    identities = {job(**change).identity({}) for change in [{}, *CHANGES]}
    assert len(identities) == 1 + len(CHANGES)


def test_a_job_of_an_older_suite_whose_baseline_was_a_control_stays_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("veca.probe.suite.VERSION", "0.1.0")
    identities = {None: "94eed9efc1510a2c", "c": "5a12a8cc4f2a200a"}
    for name, digest in identities.items():  # as version 0.1.0 made them with control=name
        one = job(baseline=() if name is None else (name,))
        assert one.identity({"models": {"model": "1"}})[:16] == digest
    several = [job(baseline=names) for names in (("c", "d"), ("d", "c"))]
    assert len({one.identity({}) for one in [job(baseline=("c",)), *several]}) == 3


def test_other_weights_or_pictures_make_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = job().identity({"weights": "1", "pictures": "2"})
    assert plain == job().identity({"pictures": "2", "weights": "1"})
    assert plain != job().identity({"weights": "3", "pictures": "2"})
    monkeypatch.setattr("veca.probe.suite.VERSION", "another")
    assert plain != job().identity({"weights": "1", "pictures": "2"})


def test_the_order_in_which_budgets_are_listed_does_not_matter(tmp_path: Path) -> None:
    lists = ([8, 64], [64, 8], [8, 64, 64])
    jobs = [read_suite(written(tmp_path, [{**ENTRY, "budgets": item}]))[0] for item in lists]
    assert len({item.identity({}) for item in jobs}) == 1


def test_the_name_of_a_job_says_what_it_runs() -> None:
    assert job().name == "knn of tiny on pets, seed 0"
    name = job(resolution=128, protocol="paper", seed=3).name
    assert name == "knn of tiny on pets at 128 px, paper, seed 3"
