"""`veca probe`: from a folder to a report, alone, in suites and by two processes."""

import json
import re
import sys
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import veca
from tests.probe.fixtures import (
    CellModel,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from tests.runtime.ranks import run_ranks
from tests.weights.models import trained_model
from veca.cli import probe as command
from veca.cli.main import main
from veca.probe import features
from veca.probe import run as prober
from veca.probe.quality import read_quality
from veca.probe.rows import TASKS
from veca.probe.run import Job
from veca.runtime.distributed import Ranks
from veca.weights.checkpoint import model_info

FLAGS = ["--model", "model", "--out", "out", "--resolution", "16", "--workers", "0",
         "--device", "cpu"]  # fmt: skip

SUITE = """
[defaults]
model = "model"
budgets = [2]
resolution = 16

[[jobs]]
task = "knn"
data = "photos"

[[jobs]]
task = "dense-knn"
data = "farm"
protocol = "quick"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset with classes and a model, in the current folder."""
    write_classes(tmp_path / "photos", train=7, val=3)
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def plotless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same without matplotlib, whose plots take longer than all else."""
    monkeypatch.setitem(sys.modules, "veca.analysis.figures", None)
    return folder


def report(out: str = "out") -> list[dict[str, Any]]:
    """The rows of a report, without what differs from run to run."""
    rows = json.loads(Path(out, "report.json").read_text("utf-8"))
    return [{**row, "milliseconds": None, "command": None, "date": ""} for row in rows]


def test_a_folder_becomes_a_report_with_heads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "knn", "photos", *FLAGS, "--budgets", "6,2", "--teacher", "pixels"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "knn of model on photos at 16 px (c2, c6), protocol dinov2.\n" in printed.err
    assert "knn on photos, protocol dinov2, feature image" in printed.out
    assert "| of pixels, untrained (teacher) |" in printed.out
    assert "Report: out/report.html (also as .md and .json)" in printed.out
    page = (folder / "out" / "report.html").read_text("utf-8")
    for part in ("Confusion matrix of model, 6 cores, 16 px", "image/svg+xml", "image/jpeg"):
        assert part in page
    last = printed.out.splitlines()[-1]
    head = "out/heads/knn_photos_model_c6_16px_dinov2_s0.safetensors"
    assert last == f"Predict on new images: veca predict {head} IMAGES"
    assert (folder / head).is_file()
    assert "21 of 21 images" in printed.err
    rows = json.loads((folder / "out" / "report.json").read_text())
    assert {(row["model"], row["budget"]) for row in rows} == {
        ("model", 2), ("model", 6), ("pixels", None)
    }  # fmt: skip
    assert {row["metric"] for row in rows} >= {"top1_k10", "top1_k20"}
    assert {row["command"] for row in rows} == {f"veca {' '.join(words)}"}
    assert all(datetime.fromisoformat(row["date"]).utcoffset() == timedelta() for row in rows)
    assert all(row["milliseconds"] > 0 for row in rows)
    assert {path.name for path in (folder / "out").iterdir()} == {
        ".lock", "report.html", "report.json", "report.md", "report.png",
        "heads", "per_image", "examples", "features",
    }  # fmt: skip


def test_class_folders_without_splits_are_split_with_a_message_and_a_record(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plotless / "photos/train").rename(plotless / "mine")
    assert main(["probe", "knn", "mine", *FLAGS, "--budgets", "2"]) == 0
    split = "there is no train/ and val/, so 3 of the 21 images, a fifth of each of the 3 classes"
    printed, page = capsys.readouterr(), (plotless / "out/report.md").read_text("utf-8")
    assert f"mine: {split}" in printed.err
    assert f"Dataset: split: {split}" in page
    assert {(row["split"], row["counts"]["train"]) for row in report()} == {("val", 18)}
    assert printed.out.endswith("Predict on new images: veca predict out IMAGES\n")  # one head


def test_a_report_without_matplotlib_says_why_it_has_no_plot(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2"]) == 0
    for text in (capsys.readouterr().out, (plotless / "out/report.md").read_text("utf-8")):
        assert "No plot: it needs matplotlib (`pip install 'veca[figures]'`)." in text


def test_a_second_run_adds_to_the_report_and_replaces_its_own_rows(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "logistic", "photos", *FLAGS, "--budgets", "2", "--seeds", "0,1"]
    assert main(words) == 0
    first = report()
    assert {row["seed"] for row in first} == {0, 1}
    more = ["--budgets", "2", "--features", "cache"]
    assert main(["probe", "knn", "photos", *FLAGS, *more]) == 0
    assert (plotless / "cache").is_dir()
    printed = capsys.readouterr().out
    assert "logistic" not in printed.rpartition("knn on photos")[2]
    page = (plotless / "out" / "report.html").read_text("utf-8")
    assert "no charts, since matplotlib is not installed" in page
    assert page.count("Confusion matrix") == 2  # the first one has been kept
    assert main(words) == 0
    assert "images" not in capsys.readouterr().err  # no features were extracted again
    assert [row for row in report() if row["task"] == "logistic"] == first
    assert {row["task"] for row in report()} == {"knn", "logistic"}
    assert plotless.joinpath("out", "report.md").read_text().count("\n## ") == 4


def test_each_baseline_is_compared_over_all_tasks_of_the_folder(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_quick_protocols(monkeypatch)
    write_dense(plotless / "farm", "masks")
    for seed, name in ((7, "full"), (8, "another")):
        veca.save(trained_model(seed, patch_size=8, attention="full"), plotless / name)
    words = ["--model", "model", "--budgets", "1,5", "--workers", "0", "--device", "cpu"]
    words += ["--resolutions", "16,24", "--out", "out", "--baseline"]  # budgets never trained
    assert main(["probe", "knn", "photos", *words, "full,another"]) == 0
    text = (plotless / "out" / "report.html").read_text("utf-8")
    assert ">Against full (baseline)</h2>" in text
    assert main(["probe", "dense-knn", "farm", *words, "full", "--protocol", "quick"]) == 0
    for one in json.loads((plotless / "out" / "comparison.json").read_text()):
        places = [(line["resolution"], line["budget"]) for line in one["lines"]]
        assert places == [(16, 1), (16, 5), (24, 1), (24, 5)]
        tasks = [[number["task"] for number in line["numbers"]] for line in one["lines"]]
        assert tasks == [["knn", "dense-knn"] if one["baseline"] == "full" else ["knn"]] * 4
    text = (plotless / "out" / "report.md").read_text()
    titles = ("## Against full (baseline)", "## Against another (baseline)", "## knn on photos")
    assert sorted(titles, key=text.index) == list(titles)


def test_a_report_becomes_quality_json_beside_the_weights_as_info_shows(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2,6"]) == 0
    capsys.readouterr()
    words = ["probe", "quality", "out/report.json", "--model", "model"]
    assert main([*words, "--out", "model/quality.json"]) == 0
    found = read_quality(plotless / "model" / "quality.json", model_info("model").digest)
    top1 = {row["budget"]: row["value"] for row in report() if row["metric"] == "top1_k20"}
    values = {row.budget: row.value for row in found.rows if row.metric == "top1_k20"}
    assert values == pytest.approx(top1, abs=1e-6)
    rows, sure = len(found.rows), sum("top1" in row.metric for row in found.rows)
    printed = capsys.readouterr().out
    assert printed == f"model/quality.json: {rows} measurements, {sure} of them with an interval.\n"
    assert main(["info", "model"]) == 0
    assert re.search(rf"(?m)^quality\.json +{rows} measurements *$", capsys.readouterr().out)
    write_model(plotless / "model", seed=1)
    assert main(["info", "model"]) == 0
    assert "is of the weights" in capsys.readouterr().out
    assert main([*words, "--out", "model/quality.json"]) == 2
    assert "have no number of model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dance"], "'dance' is not a task; use linear, knn, "),
        (["knn", "nowhere", *FLAGS], "nowhere is neither a folder nor NAME=FOLDER"),
        (["knn", "photos", *FLAGS, "--model", "./nowhere"], "no file or folder './nowhere'; use"),
        (["knn", "photos", *FLAGS, "--budgets", "2,x"], "--budgets got '2,x'"),
        (["knn", "photos", *FLAGS, "--budgets", "7"], "budget=7 is outside 1..6"),
        (["knn", "photos", *FLAGS, "--resolution", "0"], "resolution is 0; it must be >= 1."),
        (["knn", "photos", *FLAGS, "--resolutions", "8"], "--resolution and --resolutions were"),
        (["knn", "photos", *FLAGS, "--batch", "0"], "batch=0"),
        (["knn", "photos", *FLAGS, "--out", "photos/val/red/0.png"], "0.png is a file; give a fol"),
        (["suite", "none.toml", "--out", "out"], "none.toml cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(
    plotless: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["probe", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("veca: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not (plotless / "out").exists()


def test_help_names_every_task_and_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == 2
    printed = capsys.readouterr().out
    assert main(["probe", "--help"]) == 0
    assert capsys.readouterr().out == printed
    assert all(f"\n  {task} " in printed for task in TASKS)
    assert main(["probe", "depth", "--help-all"]) == 0
    printed = capsys.readouterr().out
    assert "nyu-v2" in printed
    assert "Example: veca probe depth data" in printed
    fields = {name.replace("_", "-") for name in Job.__dataclass_fields__}
    assert all(f"--{name} " in printed for name in fields - {"task", "data"})
    assert main(["probe", "suite", "--help"]) == 0
    assert "Example: veca probe suite paper.toml" in capsys.readouterr().out


def test_features_are_cached_when_ctrl_c_stops_a_run(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(CellModel):
        """Is interrupted at its third batch."""

        def forward(self, *given: Any) -> Any:
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().forward(*given)

    models = [Stopped(), CellModel()]
    monkeypatch.setattr(features, "IMAGE_CHUNK", 4)
    monkeypatch.setattr(prober, "find_model", lambda name, device: models.pop(0))
    words = ["probe", "knn", "photos", *FLAGS, "--batch", "4"]
    assert main(words) == 130
    assert "Features are cached; repeat the command" in capsys.readouterr().err
    assert not (plotless / "out" / "report.json").exists()
    whole = models[0]
    assert main(words) == 0
    timing = 8 + 1  # seven rounds after a first one, and the count of operations
    assert sum(whole.asked.values()) - timing == (24 - 12) + 12  # in batches of four


def test_a_suite_skips_finished_jobs_and_continues_without_a_missing_dataset(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_quick_protocols(monkeypatch)
    (plotless / "suite.toml").write_text(SUITE)
    words = ["probe", "suite", "suite.toml", "--out", "out", "--workers", "0", "--device", "cpu"]
    assert main(words) == 1
    printed = capsys.readouterr().out
    assert "Jobs: 1 ran, 0 were already done, 1 failed." in printed
    assert "Failed: dense-knn of model on farm at 16 px, quick, seed 0: farm is neither" in printed
    first = report()
    assert {row["task"] for row in first} == {"knn"}

    write_dense(plotless / "farm", "masks")
    assert main(words) == 0
    printed, logged = capsys.readouterr()
    assert "Jobs: 1 ran, 1 were already done, 0 failed." in printed
    assert "knn of model on photos at 16 px, seed 0: already done" in logged
    assert [row for row in report() if row["task"] == "knn"] == first
    assert {row["task"] for row in report()} == {"knn", "dense-knn"}


@pytest.mark.workers
def test_two_processes_report_what_one_does(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_quick_protocols(monkeypatch)
    write_dense(plotless / "farm", "masks", train=5)
    (plotless / "suite.toml").write_text(SUITE)
    words = ["probe", "suite", "suite.toml", "--workers", "0", "--device", "cpu", "--out"]

    def work(ranks: Ranks) -> None:
        monkeypatch.setattr(command, "init_distributed", lambda device: nullcontext(ranks))
        assert main([*words, "two"]) == 0
        assert capsys.readouterr().out.count("Jobs: 2 ran") == ranks.is_main

    run_ranks(work, plotless)
    assert main([*words, "one"]) == 0
    for name in ("one", "two"):
        page = Path(name, "report.html").read_text("utf-8")
        assert ("Confusion matrix" in page, "Best, median and worst" in page) == (True, True)
    one, two = report("one"), report("two")
    assert len(one) > 8
    assert one == two
