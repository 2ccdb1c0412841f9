"""Heads and cases lie under readable names, and no two different ones under the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.probe.made_up_rows import row
from tests.probe.small_features import CellModel
from tests.probe.small_sets import color_set
from veca.probe.measured import FittedHead, Found, Measured, Measurement
from veca.probe.predict import Origin, keep_result, load_head
from veca.probe.rows import Role, Setting, row_from_json


def found_in(folder: Path, asked: str = "tiny", role: Role = "model", **changes: Any) -> Found:
    """A result of a model."""
    usual: dict[str, Any] = {
        "setting": Setting(8, 0.5),
        "seed": 3,
        "data": color_set(folder / "pictures"),
        "metrics": {"top1": 50.0},
        "counts": {"train": 18, "test": 9},
        "protocol": "dinov2",
        "feature": "image",
        "head": FittedHead(tensors={"bias": torch.ones(3)}, facts={"margin": 1.0}),
        "cases": {"correct": torch.ones(9, dtype=torch.bool)},
    }
    return Found(Measurement(role, asked, CellModel()), 64, Measured(**usual | changes))


def origin(**changes: Any) -> Origin:
    """What the result is of."""
    usual: dict[str, Any] = {
        "task": "logistic",
        "data": "data/colors",
        "classes": ("blue", "green", "red"),
        "feature": None,
        "pictures": "a" * 64,
    }
    return Origin(**usual | changes)


def test_a_head_lies_under_what_it_is_with_all_that_it_takes_to_use_it(tmp_path: Path) -> None:
    folder = keep_result(found_in(tmp_path), origin(), tmp_path)
    name = "logistic_colors_tiny_c8-f0.5_64px_dinov2_s3"
    assert folder == tmp_path / "heads" / name
    head = load_head(folder)
    assert (head.task, head.data, head.classes) == ("logistic", "colors", ("blue", "green", "red"))
    assert (head.model, head.weights, head.setting) == ("tiny", "cells", Setting(8, 0.5))
    assert (head.resolution, head.seed, head.metrics) == (64, 3, {"top1": 50.0})
    assert torch.equal(head.tensors["bias"], torch.ones(3))
    cases = tmp_path / "cases" / f"{name}.safetensors"
    assert load_file(cases)["correct"].all()
    with safe_open(cases, "pt") as file:
        assert file.metadata()["data"] == "colors"
        assert file.metadata()["sha256"] == "a" * 64


def test_cases_carry_a_row_of_their_result_and_which_classes_are_scored(tmp_path: Path) -> None:
    some = color_set(tmp_path, scored=(0, 2))
    keep_result(found_in(tmp_path, data=some), origin(row=row(command="a 'b' \udc80")), tmp_path)
    (cases,) = (tmp_path / "cases").iterdir()
    with safe_open(cases, "pt") as file:
        facts = file.metadata()
    assert row_from_json(json.loads(facts["row"])) == row(command="a 'b' \udc80")
    assert json.loads(facts["scored"]) == [0, 2]
    keep_result(found_in(tmp_path), origin(row=row()), tmp_path)  # takes its place
    with safe_open(cases, "pt") as file:
        assert json.loads(file.metadata()["scored"]) is None


def test_without_a_head_the_cases_are_kept_alone(tmp_path: Path) -> None:
    assert keep_result(found_in(tmp_path, head=None), origin(), tmp_path) is None
    assert len(list((tmp_path / "cases").iterdir())) == 1
    assert not (tmp_path / "heads").exists()


def test_a_path_is_named_by_its_last_two_folders_and_remembered_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my runs" / "best").mkdir(parents=True)
    folder = keep_result(found_in(tmp_path, "my runs/best"), origin(), tmp_path)
    assert folder is not None
    assert folder.name == "logistic_colors_my-runs-best_c8-f0.5_64px_dinov2_s3"
    assert load_head(folder).model == str(tmp_path / "my runs" / "best")
    hub = keep_result(found_in(tmp_path, "owner/net:x"), origin(), tmp_path)
    assert hub is not None
    assert "_owner-net-x_" in hub.name
    assert load_head(hub).model == "owner/net:x"


def test_a_result_that_is_measured_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    keep_result(found_in(tmp_path), origin(), tmp_path)
    folder = keep_result(found_in(tmp_path, metrics={"top1": 60.0}), origin(), tmp_path)
    assert folder is not None
    assert load_head(folder).metrics == {"top1": 60.0}
    assert len(list((tmp_path / "heads").iterdir())) == 1


def test_models_and_sets_of_the_same_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    places = [tmp_path / disk / "runs" / "best" for disk in ("a", "b")]
    for place in places:
        place.mkdir(parents=True)
    roles: tuple[Role, Role] = ("model", "teacher")
    folders = [
        keep_result(found_in(tmp_path, str(place), role), origin(data=data), tmp_path)
        for data in ("colors", "other/colors", "colors=a", "colors=b")
        for place, role in zip(places, roles, strict=True)
    ]
    assert len(set(folders)) == 8
    for folder, place in zip(folders[:2], places, strict=True):
        assert folder is not None
        assert load_head(folder).model == str(place)
    again = [
        keep_result(found_in(tmp_path, str(place)), origin(data="colors"), tmp_path)
        for place in places
    ]
    assert again == folders[:2]
    assert len(list((tmp_path / "cases").iterdir())) == 8


def test_everything_that_tells_results_apart_is_in_their_names(tmp_path: Path) -> None:
    base = found_in(tmp_path)
    others = [
        base,
        base._replace(resolution=128),
        *(
            base._replace(measured=replace(base.measured, **change))
            for change in (
                {"setting": Setting(16, 0.5)},
                {"setting": Setting()},
                {"seed": 4},
                {"protocol": "paper"},
                {"data": color_set(tmp_path, name="v2")},
            )
        ),
    ]
    folders = [keep_result(one, origin(), tmp_path) for one in others]
    folders += [keep_result(base, origin(feature="patch-mean"), tmp_path)]
    folders += [keep_result(base, origin(task="knn"), tmp_path)]
    assert len(set(folders)) == 9
    assert not any(folder is None or "-f0.5_64px_dinov2_s3-" in folder.name for folder in folders)


def test_damaged_cases_are_written_again(tmp_path: Path) -> None:
    folder = keep_result(found_in(tmp_path), origin(), tmp_path)
    (cases,) = (tmp_path / "cases").iterdir()
    cases.write_bytes(b"x")
    assert keep_result(found_in(tmp_path), origin(), tmp_path) == folder
    assert load_file(cases)["correct"].all()
