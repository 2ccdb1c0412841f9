"""`veca predict`: the predictions of a fitted head on new images, as text, drawings and JSON."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pictures import encoded, write_shard
from tests.probe.fixtures import (
    CLASSES,
    context_in,
    use_quick_protocols,
    write_dense,
    write_model,
)
from veca.cli.main import main
from veca.data.images import decode
from veca.data.listing import ImageEntry, TableBuilder
from veca.data.sets.dataset import Split
from veca.probe.features import extract_image_features
from veca.probe.heads import SavedHead, load_head, save_head
from veca.probe.linear import LinearHead
from veca.probe.models import PixelModel
from veca.probe.predict import predict_labels
from veca.probe.rows import Setting


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is called, without matplotlib, whose plots take long."""
    monkeypatch.setitem(sys.modules, "veca.analysis.figures", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pixels_head(folder: Path, name: str = "head", **changes: Any) -> str:
    """A head on raw pixels that finds red images; returns its file."""
    weight = torch.zeros(2, 768)
    weight[1, :256] = 0.05
    usual: dict[str, Any] = {
        "task": "logistic", "data": "none", "classes": ("pale", "red"), "model": "pixels",
        "weights": PixelModel(torch.device("cpu")).digest, "setting": Setting(), "resolution": 16,
        "protocol": "dinov2", "seed": 0, "facts": {"resize_ratio": 1.0, "feature": "image"},
        "tensors": {"weight": weight, "bias": torch.zeros(2)},
    }  # fmt: skip
    save_head(SavedHead(**usual | changes), folder / f"{name}.safetensors")
    return f"{name}.safetensors"


def write_plain(path: Path, color: tuple[int, int, int]) -> None:
    """An image of one color."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 20), color).save(path)


def test_a_large_photograph_is_preprocessed_as_test_images_were(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (301, 403, 3), np.uint8)
    path = folder / "large.jpg"
    Image.fromarray(noise).save(path, quality=90)
    weight = torch.randn(2, 768, generator=torch.Generator().manual_seed(0)) / 50
    tensors = {"weight": weight, "bias": torch.zeros(2)}
    file = pixels_head(folder, tensors=tensors)
    head = load_head(Path(file))
    assert main(["predict", file, "large.jpg", "--json"]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    table = TableBuilder()
    table.add(ImageEntry(str(path), path.stat().st_size))
    split = Split(name="test", images=table.table(), keys=("large.jpg",))
    model = PixelModel(torch.device("cpu"))
    ctx = context_in(folder / "cache")
    found = extract_image_features(model, (Setting(),), split, ctx, resolution=16, resize_ratio=1.0)
    shares = LinearHead(**tensors).probabilities(found[Setting()])[0].tolist()
    assert {one["label"]: one["score"] for one in labels} == dict(
        zip(head.classes, shares, strict=True)
    )
    whole = predict_labels(model, head, decode(path))
    assert abs(whole[0][1] - labels[0]["score"]) > 1e-4  # so that decoding all would be seen


def test_labels_come_as_json_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plain(folder / "a" / "x.png", (250, 0, 0))
    write_plain(folder / "b" / "x.png", (0, 250, 250))
    head = pixels_head(folder)
    assert main(["predict", head, "a", "b", "--json", "--top", "1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["image"]).parent.name for row in rows] == ["a", "b"]
    assert [row["labels"][0]["label"] for row in rows] == ["red", "pale"]
    assert all(len(row["labels"]) == 1 and row["labels"][0]["score"] > 0.5 for row in rows)


def test_an_image_that_cannot_be_read_does_not_stop_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plain(folder / "a" / "good.png", (250, 0, 0))
    (folder / "a" / "bad.png").write_bytes(b"not an image")
    (folder / "z.tar.gz").write_bytes(b"")
    write_shard(folder / "s.tar", [("deep/one.png", encoded(0))])
    (folder / "list.txt").write_text("a/gone.png\n")
    head = pixels_head(folder)
    assert main(["predict", head, "a", "s.tar", "z.tar.gz", "list.txt", "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {Path(row["image"]).name: "error" in row for row in rows}
    assert found == {"bad.png": True, "z.tar.gz": True, "gone.png": True, "good.png": False,
                     "one.png": False}  # fmt: skip
    assert main(["predict", head, "a"]) == 1
    bad, good = capsys.readouterr().out.splitlines()
    assert "bad.png: " in bad
    assert re.search(r"good\.png: red \d+\.\d%, pale \d+\.\d%$", good)


def probed(folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, kind: str) -> Path:
    """Fit a dense head on a small dataset; return its file."""
    use_quick_protocols(monkeypatch)
    write_dense(folder / "set", kind)
    write_model(folder / "model")
    words = ["probe", task, "set", "--model", "model", "--out", "out", "--protocol", "quick",
             "--budgets", "3", "--workers", "0"]  # fmt: skip
    assert main(words) == 0
    (head,) = (folder / "out" / "heads").iterdir()
    return head


def test_classes_of_pixels_are_drawn_and_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = probed(folder, monkeypatch, "dense-knn", "masks")
    capsys.readouterr()
    images = ["set/images/50.png", "set/images/51.png"]
    for _ in range(2):  # a second run writes over the first one's files
        assert main(["predict", str(head), *images]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.rpartition(": ")[2] for line in lines] == [
            "predictions/50_classes.png", "predictions/51_classes.png"
        ]  # fmt: skip
        assert re.search(r"field \d+% #000000", lines[0])  # the legend of the overlay
    assert len(list((folder / "predictions").iterdir())) == 4
    assert main(["predict", str(head), images[0], "--json", "--top", "9", "--out", "drawn"]) == 0
    row = json.loads(capsys.readouterr().out)
    with Image.open(row["mask"]) as mask, Image.open(folder / images[0]) as image:
        assert mask.size == image.size
        found = np.bincount(np.array(mask).ravel(), minlength=len(CLASSES)) / np.array(mask).size
    assert {one["label"]: one["share"] for one in row["classes"]} == {
        name: share for name, share in zip(CLASSES, found.tolist(), strict=True) if share
    }
    for name in ("a", "b"):  # images of one name, and in 16 bits
        write_plain(folder / name / "x.png", (90, 90, 90))
    (folder / "c").mkdir()
    Image.fromarray(np.full((24, 24), 30_000, np.uint16)).save(folder / "c" / "x.png")
    assert main(["predict", str(head), "a", "b", "c", "--out", "three"]) == 0
    assert {path.name for path in (folder / "three").iterdir()} == {
        f"{stem}_{kind}.png" for stem in ("x", "x-2", "x-3") for kind in ("classes", "mask")
    }


def test_depth_is_drawn_and_written_in_the_unit_that_holds_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = probed(folder, monkeypatch, "depth", "depth")
    capsys.readouterr()
    assert main(["predict", "out", "set/images/50.png"]) == 0
    line = capsys.readouterr().out
    assert line.endswith(" m (dark): predictions/50_depth.png\n")
    assert main(["predict", "out", "set/images/50.png", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["depth"], row["units_per_meter"]) == ("predictions/50_millimeters.png", 1000)
    with Image.open(row["depth"]) as stored:
        meters = np.array(stored) / 1000
    assert meters.shape == (48, 48)
    assert meters.mean() == pytest.approx(row["meters"]["mean"], abs=1e-3)

    far = load_head(head)
    far.facts["bins"]["max_depth"] = 80.0
    save_head(far, folder / "far.safetensors")
    assert main(["predict", "far.safetensors", "set/images/50.png", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["depth"], row["units_per_meter"]) == ("predictions/50_256ths.png", 256)
    with Image.open(row["depth"]) as stored:
        assert (np.array(stored) / 256).mean() == pytest.approx(row["meters"]["mean"], abs=1 / 256)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["head.safetensors"], "no image is named; give files"),
        (["head.safetensors", "none.png"], "none.png"),
        (["head.safetensors", "a.png", "--top", "0"], "--top is 0; it must be a whole number >= 1"),
        (["nowhere", "a.png"], "nowhere does not exist; give the --out folder of a veca probe run"),
        (["empty", "a.png"], "empty contains no head; give the --out folder"),
        (["many", "a.png"], "many contains 10 heads; name one of them: many/heads/0.safetensors, "),
        (["many/heads", "a.png"], "many/heads/7.safetensors and 2 more."),
        (["head.safetensors", "a.png", "--model", "none"], "'none' is not a known model"),
        (["head.safetensors", "a.png", "--model", "tiny"], "tiny is not the model that the head"),
        (["gone.safetensors", "a.png"], "moved, cannot be loaded ("),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    write_plain(folder / "a.png", (1, 2, 3))
    (folder / "empty").mkdir()
    pixels_head(folder)
    pixels_head(folder, "gone", model=str(folder / "moved"))
    for number in range(10 if words[0].startswith("many") else 0):
        pixels_head(folder / "many" / "heads", str(number))
    assert main(["predict", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert printed.err.count("\n") == 1
