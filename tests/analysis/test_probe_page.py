"""The page of an evaluation."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.analysis.test_page import check_page
from tests.probe.fixtures import depth_rows, knn_rows, row
from veca.analysis import probe_page
from veca.analysis.figures import plot_time
from veca.analysis.probe_page import write_page
from veca.probe.report import write_report
from veca.probe.rows import Row
from veca.runtime.tensors import save_tensors

PIXEL = torch.frombuffer(bytearray(b"\xff\xd8 a picture"), dtype=torch.uint8)


def page_of(rows: Sequence[Row], folder: Path, chart: Any = None) -> str:
    """The page of a report."""
    write_report(rows, folder)
    text = write_page(folder, chart).read_text("utf-8")
    check_page(text)
    return text


def save(folder: Path, one: Row, name: str = "a", **changes: Any) -> Path:
    """Save the examples of a result: three images of two classes, one of them a mistake."""
    item = {"title": "cat, 90%", "name": "val/dog/1.jpg", "captions": ["labeled dog"], "legend": []}
    facts: dict[str, Any] = {"row": one.as_json(), "classes": ["cat", "dog"], "items": [item]}
    tensors = {
        "0/0": PIXEL, "truth": torch.tensor([0, 1, 1]), "predicted": torch.tensor([0, 0, 1])
    }  # fmt: skip
    path = folder / "examples" / f"{name}.safetensors"
    save_tensors(path, tensors | changes.pop("tensors", {}), facts | changes)
    return path


def test_a_page_has_the_tables_of_the_report_with_intervals_and_charts(tmp_path: Path) -> None:
    text = page_of([*knn_rows(), *depth_rows()], tmp_path, plot_time)
    assert "<h1>Frozen features: 2 evaluations</h1>" in text
    anchor = "knn-on-pets-protocol-dinov2-feature-image"
    assert f'<h2 id="{anchor}">knn on pets, protocol dinov2, feature image</h2>' in text
    assert f'<a href="#{anchor}">' in text
    for words in ("<td>60.00 ± 1.00</td>", "<th>of efficientnet-lite2 (teacher)</th>", "x1.226"):
        assert words in text
    assert text.count('src="data:image/svg+xml;base64,') == 1  # depth was not timed
    assert "matplotlib" not in text


def test_without_matplotlib_a_sentence_says_what_is_missing(tmp_path: Path) -> None:
    text = page_of(knn_rows(), tmp_path)
    assert "The page has no charts, since matplotlib is not installed" in text
    assert "svg+xml" not in text


def test_classes_have_a_confusion_matrix_and_mistakes(tmp_path: Path) -> None:
    save(tmp_path, row(metric="top1_k10"))  # whichever metric the saved row has
    text = page_of([row(), row(budget=64)], tmp_path)
    matrix = text.partition('<table class="matrix">')[2].partition("</table>")[0]
    assert re.findall(r">(\d*)</td>", matrix) == ["1", "", "1", "1"]
    assert re.findall(r"/ ([\d.]+)\)(;color:#fff)?\"", matrix) == [
        ("1.00", ";color:#fff"), ("0.00", ""), ("0.71", ""), ("0.71", "")
    ]  # fmt: skip
    assert "<td>dog</td><td>cat</td><td>1 of 2</td>" in text
    assert "Most confident mistakes of runs/tiny, 8 cores, 128 px" in text
    for words in ("cat, 90%", "labeled dog", "val/dog/1.jpg", "data:image/jpeg;base64,"):
        assert words in text


def test_many_classes_are_a_picture_and_too_many_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, row(), classes=[f"class {n}" for n in range(20)])
    text = page_of([row()], tmp_path)
    assert '<img class="matrix" alt="Confusion matrix" src="data:image/png;base64,' in text
    assert "<td>class 1</td><td>class 0</td><td>1 of 2</td>" in text
    monkeypatch.setattr(probe_page, "MAX_MATRIX", 19)
    assert "Confusion matrix" not in page_of([row()], tmp_path)


def test_maps_stand_side_by_side_with_their_legend(tmp_path: Path) -> None:
    item = {"title": "best: mean IoU 90.0 %", "name": "7.jpg",
            "captions": ["image", "truth", "predicted, 8 cores"],
            "legend": [["cow", "#408000"]]}  # fmt: skip
    tensors = {"0/1": PIXEL, "0/2": PIXEL}
    one = row(task="segmentation", metric="miou")
    path = save(tmp_path, one, items=[item], tensors=tensors)
    text = page_of([one], tmp_path)
    assert "Best, median and worst image of runs/tiny" in text
    assert text.count("data:image/jpeg;base64,") == 3
    assert '<i style="background:#408000"></i>cow' in text
    path.write_bytes(path.read_bytes()[:-1])  # damaged: the tables are shown without it
    assert ">segmentation on pets" in page_of([one], tmp_path)


def test_pictures_of_other_results_are_not_shown(tmp_path: Path) -> None:
    save(tmp_path, row(data_sha256="9" * 64))
    assert "data:image/jpeg" not in page_of([row()], tmp_path)


def test_names_from_outside_are_text_wherever_they_stand(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'&\x1b[31m"
    names = ("model", "data", "command", "feature", "split", "protocol")
    item = {"title": evil, "name": evil, "captions": [evil], "legend": [[evil, '"><script>']]}
    facts = {"data_facts": {evil: evil}, "partial": (evil,), "chosen": {"on": evil}}
    one = row(**dict.fromkeys(names, evil), **facts, trained=False)
    save(tmp_path, one, classes=["cat", "<b>dog"], items=[item])
    text = page_of([one, replace(one, budget=64)], tmp_path, plot_time)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "<b>dog" not in text
    assert text.count("&lt;script&gt;alert(1)") > 10
    assert "Untrained: " in text


def test_a_page_has_a_largest_size_and_says_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"0/0": torch.zeros(3000, dtype=torch.uint8)}
    save(tmp_path, row(), tensors=large)
    save(tmp_path, row(task="logistic"), "b", tensors=large)
    whole = page_of([row(), row(task="logistic")], tmp_path)
    assert whole.count("Most confident mistakes") == 2
    monkeypatch.setattr(probe_page, "MAX_BYTES", 8000)
    text = page_of([row(), row(task="logistic")], tmp_path)
    assert text.count("Most confident mistakes") == 1
    assert "Charts and galleries left out, to keep this page below 0 MB: 1." in text
