"""`veca probe`: from a folder to a report, alone, in suites and by two processes."""

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import veca
from tests.probe.fixtures import (
    CellModel,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from tests.weights.models import trained_model
from veca.cli.main import main
from veca.probe import features
from veca.probe import run as prober
from veca.probe.quality import read_quality
from veca.probe.rows import TASKS
from veca.probe.suite import Job
from veca.runtime.distributed import VARIABLES
from veca.weights.checkpoint import model_info

ROOT = Path(__file__).parents[2]
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

WITH_QUICK_PROTOCOLS = """
import sys
import pytest
from tests.probe.fixtures import use_quick_protocols
from veca.cli.main import main
use_quick_protocols(pytest.MonkeyPatch())
sys.modules["veca.analysis.figures"] = None
sys.exit(main(sys.argv[1:]))
"""


HOLD = """
import fcntl, sys
file = open("out/.lock", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
"""Another run in the folder, until it is told to end."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of classes and a model, where the command is called."""
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
    """The rows of a report, without what another run may change."""
    rows = json.loads(Path(out, "report.json").read_text("utf-8"))
    return [{**row, "milliseconds": None, "command": None, "date": ""} for row in rows]


def test_a_folder_becomes_a_report_with_heads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "knn", "photos", *FLAGS, "--budgets", "6,2", "--teacher", "pixels"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "knn of model on photos at 16 px (c2, c6), protocol dinov2.\n" in printed.out
    assert "knn on photos, protocol dinov2, feature image" in printed.out
    assert "| of pixels, untrained (teacher) |" in printed.out
    assert "out/report.json, report.md and report.png have all rows." in printed.out
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
        ".lock", "report.json", "report.md", "report.png", "heads", "per_image", "features"
    }  # fmt: skip


def test_a_folder_is_continued_and_the_same_rows_are_replaced(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "logistic", "photos", *FLAGS, "--budgets", "2", "--seeds", "0,1"]
    assert main(words) == 0
    first = report()
    assert {row["seed"] for row in first} == {0, 1}
    assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2"]) == 0
    assert "logistic" not in capsys.readouterr().out.rpartition("knn on photos")[2]
    assert main(words) == 0
    assert "images" not in capsys.readouterr().err  # no picture was looked at again
    assert [row for row in report() if row["task"] == "logistic"] == first
    assert {row["task"] for row in report()} == {"knn", "logistic"}
    assert plotless.joinpath("out", "report.md").read_text().count("\n## ") == 4


def test_each_baseline_has_a_comparison_over_all_tasks_of_the_folder_in_the_order_they_are_named(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_quick_protocols(monkeypatch)
    write_dense(plotless / "farm", "masks")
    (plotless / "farm" / "scored.txt").write_text("field\npond\n")
    write_dense(plotless / "rooms", "depth")
    veca.save(trained_model(7, patch_size=8, attention="full"), plotless / "twin")
    veca.save(trained_model(8, patch_size=8, attention="full"), plotless / "another")
    beside = [*FLAGS, "--baseline", "twin", "--budgets", "2,6"]
    both = [*FLAGS, "--baseline", "twin,another", "--budgets", "2,6"]
    assert main(["probe", "knn", "photos", *both]) == 0
    assert "out/comparison.json and report.md have intervals relative to" in capsys.readouterr().out
    assert main(["probe", "logistic", "photos", *beside]) == 0
    dense = (("segmentation", "farm", "0,1"), ("dense-knn", "farm", "0"), ("depth", "rooms", "0"))
    for task, data, seeds in dense:
        assert main(["probe", task, data, *beside, "--protocol", "quick", "--seeds", seeds]) == 0
    found, second = json.loads((plotless / "out" / "comparison.json").read_text())
    assert second["baseline"] == "another"
    assert [[one["task"] for one in line["numbers"]] for line in second["lines"]] == [["knn"]] * 2
    assert (found["baseline"], found["left_out"]) == ("twin", [])
    assert [(line["budget"], line["resolution"]) for line in found["lines"]] == [(2, 16), (6, 16)]
    rows = report()
    for line in found["lines"]:
        assert line["classes"]["numbers"] == 2
        assert {one["task"]: one["metric"] for one in line["numbers"]} == {
            "knn": "top1_k20", "logistic": "top1", "segmentation": "miou", "dense-knn": "miou",
            "depth": "rmse",
        }  # fmt: skip
        for one in line["numbers"]:
            for role, name, budget in (
                ("model", "model", line["budget"]),
                ("baseline", "twin", None),
            ):
                values = [
                    row["value"] for row in rows
                    if (row["task"], row["metric"]) == (one["task"], one["metric"])
                    and (row["role"], row["model"], row["budget"]) == (role, name, budget)
                ]  # fmt: skip
                assert one[role] == pytest.approx(sum(values) / len(values), rel=1e-12)
    text = (plotless / "out" / "report.md").read_text()
    titles = ("## Against twin (baseline)", "## Against another (baseline)", "## knn on photos")
    assert sorted(titles, key=text.index) == list(titles)
    table = text.partition("## knn on photos")[2]
    assert table.index("of twin (baseline)") < table.index("of another (baseline)")


def test_a_report_becomes_quality_json_beside_the_weights_which_info_counts(
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


def test_budgets_that_were_never_trained_and_several_resolutions_stand_beside_full_attention(
    plotless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_quick_protocols(monkeypatch)
    write_dense(plotless / "farm", "masks")
    veca.save(trained_model(1, patch_size=8, local_kernel=3), plotless / "local")
    full = trained_model(2, patch_size=8, local_kernel=3, attention="full")
    veca.save(full, plotless / "full")
    words = ["--model", "local", "--baseline", "full", "--budgets", "1,2,4,5", "--resolutions"]
    more = ["16,24", "--out", "out", "--workers", "0", "--device", "cpu", "--protocol", "quick"]
    assert main(["probe", "dense-knn", "farm", *words, *more]) == 0
    rows = json.loads(Path("out/report.json").read_text())
    found = {(row["resolution"], row["budget"]) for row in rows if row["metric"] == "miou"}
    assert found == {(side, budget) for side in (16, 24) for budget in (1, 2, 4, 5, None)}
    assert all(row["milliseconds"] > 0 and row["gflops"] > 0 for row in rows)
    sizes = [row for row in rows if row["metric"].startswith("recall/")]
    assert len(sizes) == 3 * len(found)
    (comparison,) = json.loads(Path("out/comparison.json").read_text())
    assert {(line["resolution"], line["budget"]) for line in comparison["lines"]} == {
        place for place in found if place[1] is not None
    }


def test_features_may_lie_elsewhere_and_several_resolutions_are_measured_in_turn(
    plotless: Path,
) -> None:
    given = ["--budgets", "2", "--features", "kept", "--resolutions", "24,8", "--seed", "3"]
    flags = [word for word in FLAGS if word not in {"--resolution", "16"}]
    assert main(["probe", "knn", "photos", *flags, *given]) == 0
    assert {(row["resolution"], row["seed"]) for row in report()} == {(8, 3), (24, 3)}
    assert (plotless / "kept").is_dir()
    assert not (plotless / "out" / "features").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dance"], "'dance' is no task; use linear, knn, "),
        (["depth", "photos", *FLAGS], "photos is labeled with classes, but depth needs"),
        (["knn", "nowhere", *FLAGS], "nowhere is neither a folder nor NAME=FOLDER"),
        (["knn", "food101=photos", *FLAGS], "food101"),
        (["knn", "photos", *FLAGS, "--model", "none"], "'none' is not a known model"),
        (["knn", "photos", *FLAGS, "--model", "./nowhere"], "no file or folder './nowhere'; use"),
        (["knn", "photos", *FLAGS, "--model", "model/bset"], "no file or folder 'model/bset' (the"),
        (["knn", "photos", *FLAGS, "--teacher", "a/b/best"], "no file or folder 'a/b/best'; use"),
        (["knn", "photos", *FLAGS, "--budgets", "2,x"], "--budgets got '2,x'"),
        (["knn", "photos", *FLAGS, "--budgets", "7"], "budget=7 is outside 1..6"),
        (["knn", "photos", *FLAGS, "--ffn", "a"], "--ffn got 'a'"),
        (["knn", "photos", *FLAGS, "--resolution", "0"], "--resolution is 0; it must be >= 1."),
        (["knn", "photos", *FLAGS, "--resolutions", "8"], "--resolution and --resolutions were"),
        (["knn", "photos", *FLAGS, "--seeds", "0,-1"], "--seeds is -1; it must be >= 0."),
        (["knn", "photos", *FLAGS, "--also", ","], "--also got ','"),
        (["knn", "photos", *FLAGS, "--batch", "0"], "batch=0"),
        (["knn", "photos", *FLAGS, "--protocol", "paper"], "no protocol 'paper'"),
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
    assert main(["probe", "depth", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "nyu-v2" in printed
    assert "Example: veca probe depth data" in printed
    fields = {name.replace("_", "-") for name in Job.__dataclass_fields__}
    assert all(f"--{name} " in printed for name in fields - {"task", "data"})
    assert main(["probe", "suite", "--help"]) == 0
    assert "Example: veca probe suite paper.toml" in capsys.readouterr().out


def test_a_file_in_the_place_of_the_folder_is_an_error(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plotless / "out").write_text("")
    assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2"]) == 2
    assert "--out out is a file; give a folder." in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_two_runs_do_not_write_into_one_folder(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plotless / "out").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2"]) == 2
        other.communicate()
    assert "another process is writing into out" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_computed(
    plotless: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(CellModel):
        """Is interrupted at its fourth look."""

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
    assert sum(whole.asked.values()) - timing == (24 - 12) + 12  # in lots of four


def test_without_matplotlib_there_is_no_plot(
    plotless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "knn", "photos", *FLAGS, "--budgets", "2"]) == 0
    assert "out/report.json and report.md have all rows." in capsys.readouterr().out
    assert not (plotless / "out" / "report.png").exists()


def test_a_suite_skips_what_is_done_and_goes_on_without_what_is_missing(
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
    printed = capsys.readouterr().out
    assert "Jobs: 1 ran, 1 were already done, 0 failed." in printed
    assert "knn of model on photos at 16 px, seed 0: already done" in printed
    assert [row for row in report() if row["task"] == "knn"] == first
    assert {row["task"] for row in report()} == {"knn", "dense-knn"}
    write_model(plotless / "model", seed=1)
    assert main(words) == 0
    assert "Jobs: 2 ran" in capsys.readouterr().out
    assert len({row["weights"] for row in report()}) == 2


def environment() -> dict[str, str]:
    """Of a process that finds this project from any folder."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


@pytest.mark.workers
def test_two_processes_report_what_one_does(
    plotless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_quick_protocols(monkeypatch)
    write_dense(plotless / "farm", "masks", train=5)
    (plotless / "suite.toml").write_text(SUITE)
    words = ["probe", "suite", "suite.toml", "--workers", "0", "--device", "cpu", "--out"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    (plotless / "run.py").write_text(WITH_QUICK_PROTOCOLS)
    done = subprocess.run(
        [sys.executable, *start, "run.py", *words, "two"],
        env=environment(), capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Jobs: 2 ran") == 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert main([*words, "one"]) == 0
    finally:
        torch.set_num_threads(threads)
    one, two = report("one"), report("two")
    assert len(one) > 8
    assert one == two
