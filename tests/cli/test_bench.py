"""`veca bench` from the words to the files."""

import json
from pathlib import Path

import pytest

import veca
from veca.analysis import bench_report
from veca.cli.bench import Flags
from veca.cli.main import main
from veca.weights.checkpoint import model_info

SMALL_RUN = ("--resolutions", "64", "--budgets", "2,4", "--quick", "--no-memory", "--threads", "1")


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    model = veca.build("tiny", layers=1, width=16, heads=1, budgets=(2, 4))
    veca.save(model, tmp_path / "model")
    return tmp_path / "model"


def test_a_quick_run_prints_tables_and_writes_its_report(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--model", str(model_folder), *SMALL_RUN, "--precision", "fp32,bf16"]
    assert main(["bench", *words, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    for part in (
        "64 x 64 pixels, 16 patches", "VECA, 2 cores, FFN 0.25, bf16", "full attention",
        "plain form, 4 cores", "x fp32", "<1: slower", "untrained", "bench.json", "bench.md",
        "bench.png",
    ):  # fmt: skip
        assert part in printed.out
    assert "in turns" in printed.err
    found = json.loads((out / "bench.json").read_text())
    assert found["command"].startswith("veca bench --model")
    assert found["weights"]["configuration_of_sha256"] == model_info(model_folder).digest
    assert found["machine"]["threads"] == 1
    assert found["settings"]["precisions"] == ["fp32", "bf16"]
    assert {row["rounds"] for row in found["rows"]} == {3}
    assert [row["precision"] for row in found["rows"]] == ["fp32"] * 7 + ["bf16"] * 7


def test_several_models_have_a_folder_each_and_a_missing_plot_is_explained(
    tmp_path: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_report, "can_draw", lambda: False)
    veca.save(veca.load(model_folder), tmp_path / "other")
    names = f"{model_folder},{tmp_path / 'other'}"
    words = ["--model", names, *SMALL_RUN, "--ffn", "1.0", "--out", str(tmp_path / "out")]
    assert main(["bench", *words]) == 0
    assert {path.parent.name for path in (tmp_path / "out").glob("*/bench.json")} == {
        "model", "other",
    }  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.count("Written:") == printed.count("pip install 'veca[figures]'") == 2
    assert not list(tmp_path.rglob("*.png"))


def test_defaults_are_those_of_the_help() -> None:
    config = Flags().config("small")
    assert (config.resolutions, config.budgets) == ((256, 512, 1024), (8, 16, 32, 64))
    assert (config.shares, config.batch, config.memory) == ((0.25, 1.0), 1, True)
    assert config.precisions == ("auto",)
    quick = Flags(quick=True).config("small")
    assert (quick.resolutions, quick.budgets, quick.effort.rounds) == ((256, 512), (8, 64), 3)
    assert Flags(max_seconds=1.0).config("tiny").effort.seconds == 1.0


def test_a_small_bank_is_measured_at_the_budgets_it_has(model_folder: Path) -> None:
    assert Flags(resolutions="64").config(str(model_folder)).budgets == (4,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "smal"], "The sizes are tiny, small, small-plus, base, large."),
        (["--budgets", "8,x"], "--budgets got '8,x'"),
        (["--budgets", "65"], "outside 1..64"),
        (["--resolutions", "250"], "image to 240 or 256"),
        (["--ffn", "2"], "must lie above 0 and not above 1"),
        (["--rounds", "0"], "use at least 1 round"),
        pytest.param(
            ["--precision", "fp32,half"],
            "precision='half' is unknown; use fp32, bf16, auto.",
            marks=pytest.mark.compiled,  # without the shape hook, which would refuse it first
        ),
    ],
)
def test_mistakes_are_reported_in_a_sentence_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
