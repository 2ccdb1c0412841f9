"""`veca demo` from the words to the page."""

from pathlib import Path

import pytest
from PIL import Image

import veca
from veca.cli.main import main
from veca.runtime.timing import Effort


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veca.analysis.demo.EFFORT", Effort(rounds=1, seconds=0.0))


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "m[red]"  # no markup
    veca.save(veca.build("tiny", layers=1, width=16, heads=1, budgets=(2, 4)), folder)
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_own_photos_give_a_table_and_a_page(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    photo = tmp_path / "photo\udce9.jpg"  # a name that is not UTF-8
    Image.effect_noise((50, 40), 64).convert("RGB").save(photo)
    words = [str(photo), "--model", str(model_folder), "--budgets", "2,4"]
    words += ["--size", "32", "--precision", precision, "--out", str(tmp_path / "out")]
    assert main(["demo", *words]) == 0
    printed = capsys.readouterr().out
    assert "untrained" in printed
    assert "m[red]" in printed
    assert f"32 pixels, computed in {precision}" in " ".join(printed.split())
    assert str(tmp_path / "out" / "report.html") in printed  # in one piece, so it can be copied
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>photo?</h2>" in text
    assert "These weights are untrained" in text
    assert f"32 pixels in {precision}, median" in text


def test_without_a_model_the_trained_one_of_the_package_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (48, 40), "teal").save(tmp_path / "photo.png")
    words = [str(tmp_path / "photo.png"), "--budgets", "8", "--size", "32"]
    assert main(["demo", *words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "veca-tiny" in printed
    assert "untrained" not in printed + (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budgets", "8,x"], "--budgets got '8,x'"),
        (["--budgets", "5"], "outside 1..4"),
        (["nowhere.jpg"], "nowhere.jpg"),
        (["strip.png"], "strip.png of 1 x 70000 pixels would become"),
    ],
)
def test_a_mistake_is_one_sentence(  # noqa: PLR0917
    words: list[str],
    message: str,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (1, 70_000)).save("strip.png")
    assert main(["demo", "--model", str(model_folder), "--size", "32", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
