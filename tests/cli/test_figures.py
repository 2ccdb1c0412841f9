"""`veca figures` from the words to the files."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import veca
from tests.data.pictures import saved_model, write_pictures
from veca.cli.main import main

QUICK = ["--size", "32", "--resolutions", "32", "--device", "cpu", "--precision", "fp32"]


def test_every_image_gets_a_file_for_each_figure_and_a_bad_one_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved_model(tmp_path / "model")
    write_pictures(tmp_path / "photos", 2)
    (tmp_path / "photos" / "0001.png").write_bytes(b"no image")
    words = [str(folder), str(tmp_path / "photos"), "--out", str(tmp_path / "out"), *QUICK]
    assert main(["figures", *words, "--point", "3,4", "--baseline", "pixels"]) == 1
    names = {"features", "similarity", "cores", "paths", "objects"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"0000_{name}.png" for name in names
    }
    printed = capsys.readouterr().out
    assert "untrained" in printed
    assert "0001.png" in printed
    assert str(tmp_path / "out" / "0000_paths.png") in printed


def test_only_what_is_asked_for_is_drawn_in_the_format_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved_model(tmp_path / "model")
    write_pictures(tmp_path / "photos", 3)
    words = [str(folder), str(tmp_path / "photos"), "--out", str(tmp_path / "out"), *QUICK]
    words += ["--only", "objects", "--budgets", "2", "--format", "svg", "--max-images", "1"]
    assert main(["figures", *words]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0000_objects.svg"]
    assert "Drawn: 1 of 3 images" in capsys.readouterr().out


def test_a_trade_off_needs_a_report_and_no_image(tmp_path: Path) -> None:
    report = Path(veca.__file__).parent / "weights" / "bundled" / "veca-tiny" / "quality.json"
    words = ["veca-tiny", "--only", "trade-off", "--report", str(report)]
    assert main(["figures", *words, "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["trade-off.png"]


def test_full_attention_is_drawn_without_figures_of_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = veca.build("tiny", layers=1, width=16, heads=1, attention="full")
    veca.save(full, tmp_path / "model")
    write_pictures(tmp_path / "photos", 8)  # enough for evolution
    words = [str(tmp_path / "model"), str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    assert main(["figures", *words, *QUICK, "--max-images", "1"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert "Not drawn: cores, paths, objects, evolution" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "colors"], "--only got colors; the figures are features, similarity"),
        (["--only", "trade-off"], "trade-off needs --report FILE"),
        (["--point", "3"], "--point got '3'; give x,y in pixels"),
        (["--point", "999,0"], "outside the original image"),
        (["--budgets", "5"], "5 is outside 1..4"),
        (["--report", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folder = saved_model(tmp_path / "model")
    write_pictures(tmp_path / "photos", 1)
    given = [str(folder), str(tmp_path / "photos"), "--out", str(tmp_path / "out"), *QUICK]
    assert main(["figures", *given, *words]) == 2
    assert message in capsys.readouterr().err


def test_no_image_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "holiday.jpg", "--out", str(tmp_path)]) == 2
    assert "no image is named after the model, holiday.jpg; give" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "code", "message"),
    [
        ("matplotlib", 2, "needs matplotlib, which is not installed; run `pip install"),
        ("umap", 0, "Not drawn: evolution, which needs umap-learn (`pip install"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(  # noqa: PLR0917
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    code: int,
    message: str,
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == missing else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    folder = saved_model(tmp_path / "model")
    write_pictures(tmp_path / "photos", 8)
    words = [str(folder), str(tmp_path / "photos"), "--out", str(tmp_path / "out"), *QUICK]
    assert main(["figures", *words, "--max-images", "0"]) == code
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
