"""A job becomes rows: checked first, computed once, and the same every time."""

import dataclasses
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.probe.fixtures import (
    CellModel,
    ColorModel,
    color_set,
    evaluator_in,
    timeless,
    use_quick_protocols,
    write_classes,
    write_dense,
    write_model,
)
from veca.data.sets.registry import read_set
from veca.probe import run as module
from veca.probe.bootstrap import load_per_image
from veca.probe.heads import find_results, load_head
from veca.probe.rows import (
    CLASS_TASKS,
    TASKS,
    ProbeError,
    Setting,
    Task,
    mean_over_seeds,
    merge_rows,
)
from veca.probe.run import MAX_MODELS, TASK_SPECS, Evaluator, Job, data_hash, default_protocol
from veca.probe.suite import is_done
from veca.runtime import VERSION


class Elastic(CellModel):
    """A model that takes budgets up to 8."""

    def settings(self, budgets: Any, shares: Any) -> tuple[Setting, ...]:
        del shares
        if max(budgets or (2,)) > 8:
            raise ProbeError("there are 8 cores; use fewer.")
        return tuple(Setting(budget) for budget in budgets or (2, 8))


def job(task: str = "knn", **changes: Any) -> Job:
    """A job on sets and models that the evaluator already has."""
    usual: dict[str, Any] = {"task": task, "data": "colors", "model": "cells", "resolution": 18}
    return Job(**usual | changes)


def prepared(folder: Path, **changes: Any) -> tuple[Evaluator, Elastic]:
    """An evaluator with a set in memory and a model that counts what it is asked."""
    found, model = evaluator_in(folder, **changes), Elastic()
    found.models["cells"] = model
    found.datasets["colors", False] = color_set(folder / "images")
    return found, model


def test_a_row_carries_all_that_reproduces_its_number_and_costs_are_measured_once_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veca")
    asked: Counter[Setting] = Counter()
    monkeypatch.setattr(
        Elastic, "gflops", lambda self, sides, setting: asked.update([setting]) or 1.0
    )
    evaluator, _ = prepared(tmp_path, command="veca probe knn ...", rounds=1)
    rows = evaluator.run_job(job(budgets=(2, 8)), (4, 5))
    assert {row.metric for row in rows} == {"top1_k10", "mean_per_class_k10"}
    assert {row.budget for row in rows} == {2, 8}
    assert asked == {Setting(2): 1, Setting(8): 1}
    for row in rows:
        assert row.budget is not None
        assert (row.task, row.model, row.role, row.data) == ("knn", "cells", "model", "colors")
        assert (row.split, row.counts) == ("test", {"train": 18, "test": 9})
        assert (row.resolution, row.unit, row.seed) == (16, "%", 4)
        assert (row.protocol, row.feature, row.ffn) == ("dinov2", "image", None)
        assert (row.weights, row.trained, row.version) == ("cells", False, VERSION)
        assert (row.command, row.gflops) == ("veca probe knn ...", 1.0)
        assert row.patches_per_core == 16 / row.budget
        assert row.milliseconds is not None
        assert row.milliseconds > 0
        assert row.data_sha256 is not None
        assert len(row.data_sha256) == 64
    assert caplog.messages == [
        "kNN is deterministic; running only seed 4.",
        "knn of cells on colors at 16 px (c2, c8), protocol dinov2.",
    ]


METRICS = {"knn": "top1_k10", "logistic": "top1", "linear": "top1", "segmentation": "miou",
           "dense-knn": "miou", "depth": "rmse"}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_a_job_that_is_run_again_gives_the_same_rows_without_extracting_features_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task
) -> None:
    use_quick_protocols(monkeypatch)
    if task in CLASS_TASKS:
        data = write_classes(tmp_path / "set", train=6, val=3)
    else:
        data = write_dense(tmp_path / "set", "depth" if task == "depth" else "masks")
    protocol = None if task in {"knn", "logistic"} else "quick"
    wanted = job(task, data=str(data), model="colors", protocol=protocol, resolution=32)
    found, asked = [], []
    for _ in range(2):
        evaluator, model = evaluator_in(tmp_path), ColorModel()
        evaluator.models["colors"] = model
        found.append(evaluator.run_job(wanted))
        asked.append(sum(model.asked.values()))
    assert timeless(found[0]) == timeless(found[1])
    assert asked[0] > asked[1] == 1  # the image on which the cost is counted
    lead = next(row for row in found[0] if row.metric == METRICS[task])
    assert (lead.unit, lead.split) == ("m" if task == "depth" else "%", "val")
    assert (lead.counts["test"], lead.resolution) == (9 if task in CLASS_TASKS else 3, 32)


def test_teacher_and_baselines_are_measured_beside_the_model_in_the_order_they_are_named(
    tmp_path: Path,
) -> None:
    evaluator, _ = prepared(tmp_path)
    for name in ("teacher", "full", "other"):
        evaluator.models[name] = CellModel(seed=len(name), digest=name)
    rows = evaluator.run_job(job(teacher="teacher", baseline=("full", "other"), budgets=(2, 8)))
    assert list(dict.fromkeys((row.role, row.model, row.weights, row.budget) for row in rows)) == [
        ("model", "cells", "cells", 2), ("model", "cells", "cells", 8),
        ("teacher", "teacher", "teacher", None),
        ("baseline", "full", "full", None), ("baseline", "other", "other", None),
    ]  # fmt: skip
    roles = [role for role, _ in evaluator.heads]
    assert roles == ["model", "model", "teacher", "baseline", "baseline"]


def test_the_head_and_the_per_image_results_of_every_row_are_saved_and_give_its_number(
    tmp_path: Path,
) -> None:
    evaluator, _ = prepared(tmp_path)
    evaluator.datasets["v2", False] = color_set(
        tmp_path, name="v2", train=None, uses_head_of="colors"
    )
    rows = evaluator.run_job(job("logistic", budgets=(2, 8), also=("v2",)), (0, 1))
    assert {path.parent for _, path in evaluator.heads} == {tmp_path / "out" / "heads"}
    assert len(evaluator.heads) == 2 * 2  # settings and seeds
    values = {row.value for row in rows}
    assert all(set(load_head(path).metrics.values()) <= values for _, path in evaluator.heads)
    files = find_results(tmp_path / "out" / "per_image")
    leading = [one for one in mean_over_seeds(rows) if one.row.metric == "top1"]
    assert len(leading) == 2 * 2  # settings and datasets
    for one in leading:
        assert one.seeds == (0, 1)
        found = load_per_image(one, files)
        assert found is not None
        assert found.value == pytest.approx(one.mean)


def test_a_mistake_about_any_model_is_raised_before_the_first_one_runs(
    tmp_path: Path,
) -> None:
    evaluator, model = prepared(tmp_path)
    evaluator.models["second"] = Elastic(digest="second")
    evaluator.datasets["masks", False] = color_set(tmp_path, kind="masks")
    wrong: list[tuple[Job, str]] = [
        (job(teacher="nothing"), "'nothing' is not a known model"),
        (job(teacher="second", budgets=(99,)), "there are 8 cores"),
        (job(resolution=0), "resolution is 0; it must be >= 1"),
        (job(protocol="paper"), "knn has no protocol 'paper'; use one of dinov2"),
        (job(feature="patches"), "feature 'patches' is not available for this task; use one of im"),
        (job("depth"), "colors is labeled with classes, but depth needs depth; use knn, "),
        (job(data="masks"), "labeled with masks, but knn needs classes; use segmentation, "),
        (job("segmentation", data="masks", also=("colors",)), "--also is only available for class"),
        (job(also=("masks",)), "classes of masks, colors has"),
        (job(data="nowhere"), "neither a folder nor NAME=FOLDER"),
    ]
    for bad, words in wrong:
        for call in (evaluator.check, evaluator.run_job, evaluator.expect):
            with pytest.raises(ValueError, match=words) as caught:
                call(bad)
            assert str(caught.value).endswith(".")
    evaluator.check(job(budgets=(2, 8)))
    assert not model.asked
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "name"),
    [("food101=photos", "dinov3"), ("photos", "dinov3-small"), ("x=1/photos", "dinov3-small"),
     ("food101", "dinov3-small")],
)  # fmt: skip
def test_published_sets_get_the_long_protocol_and_own_folders_the_short_one(
    data: str, name: str
) -> None:
    assert TASK_SPECS.keys() == set(TASKS)
    assert {task for task, spec in TASK_SPECS.items() if spec.kind == "classes"} == {*CLASS_TASKS}
    assert default_protocol("linear", data) == name


def test_heads_of_a_partial_set_are_marked_wherever_they_are_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator, _ = prepared(tmp_path)
    second = color_set(tmp_path, name="v2", train=None, uses_head_of="colors", missing=("no red",))
    evaluator.datasets["v2", True] = second
    evaluator.datasets["colors", True] = color_set(tmp_path, missing=("10 images of 18",))
    rows = evaluator.run_job(job(also=("v2",), allow_partial=True, budgets=(2,)))
    marks = {row.data: row.partial for row in rows}
    assert marks == {"colors": ("10 images of 18",), "v2": ("10 images of 18", "no red")}
    assert caplog.messages[0] == "colors is partial: 10 images of 18."
    assert {row.split for row in rows if row.data == "v2"} == {second.test.name}
    assert len(evaluator.heads) == 1


def test_models_are_loaded_once_and_the_last_ones_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def find(name: str, device: torch.device) -> Elastic:
        del device
        loaded.append(name)
        return Elastic(digest=name)

    monkeypatch.setattr(module, "find_model", find)
    evaluator, _ = prepared(tmp_path)
    names = [f"m{number}" for number in range(MAX_MODELS + 1)]
    for name in (names[0], names[0], *names):
        evaluator.check(job(model=name))
    assert loaded == names
    assert list(evaluator.models) == names[1:]
    evaluator.check(job(model=names[1], teacher=names[-1]))
    assert loaded == names


def test_a_job_is_done_when_its_rows_exist_but_not_with_other_weights_or_labels(
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "model")
    folder = write_classes(tmp_path / "photos", train=4, val=2)
    wanted = Job(task="logistic", data=str(folder), model=str(tmp_path / "model"),
                 teacher="pixels", budgets=(2, 6), resolution=20, seed=3)  # fmt: skip
    rows = evaluator_in(tmp_path).run_job(wanted)
    assert is_done(evaluator_in(tmp_path).expect(wanted), rows)
    for change in ({"budgets": (3,)}, {"seed": 4}, {"feature": "patch-mean"}, {"resolution": 32}):
        assert not is_done(
            evaluator_in(tmp_path).expect(dataclasses.replace(wanted, **change)), rows
        )
    write_model(tmp_path / "model", seed=1)
    assert not is_done(evaluator_in(tmp_path).expect(wanted), rows)
    write_model(tmp_path / "model")
    assert is_done(evaluator_in(tmp_path).expect(wanted), rows)
    (folder / "val" / "red" / "0.png").rename(folder / "val" / "blue" / "moved.png")
    assert not is_done(evaluator_in(tmp_path).expect(wanted), rows)


def test_rows_in_bf16_are_marked_and_stay_beside_those_in_fp32(tmp_path: Path) -> None:
    write_classes(tmp_path / "data", train=4, val=2)
    write_model(tmp_path / "model")
    wanted = Job(
        task="knn", data=str(tmp_path / "data"), model=str(tmp_path / "model"), resolution=32
    )
    found = {}
    for precision in ("fp32", "bf16"):
        evaluator = evaluator_in(tmp_path)
        evaluator.ctx = dataclasses.replace(evaluator.ctx, precision=precision)
        found[precision] = evaluator.run_job(wanted)
        assert is_done(evaluator.expect(wanted), found[precision])
        assert {row.precision for row in found[precision]} == {precision}
    assert len(merge_rows(found["fp32"], found["bf16"])) == 2 * len(found["fp32"])
    assert not is_done(evaluator.expect(wanted), found["fp32"])
    heads = sorted(path.name for path in (tmp_path / "out" / "heads").iterdir())
    halves = [name for name in heads if "_dinov2_bf16_" in name]
    assert len(halves) == len(heads) / 2 > 0
    assert load_head(tmp_path / "out" / "heads" / halves[0]).precision == "bf16"


def test_a_dataset_is_identified_by_its_images_and_labels_and_not_by_its_folder(
    tmp_path: Path,
) -> None:
    first = write_classes(tmp_path / "first", train=2, val=1, test=1)
    found = [data_hash(read_set(str(first)))]
    shutil.copytree(first, tmp_path / "moved")
    assert data_hash(read_set(str(tmp_path / "moved"))) == found[0]
    for split in ("train", "val", "test"):
        shutil.copytree(first, tmp_path / split)
        red = tmp_path / split / split / "red"
        shutil.copy(first / "val" / "red" / "0.png", red / "more.png")
        found.append(data_hash(read_set(str(tmp_path / split))))
    assert len(set(found)) == 4
    plain, changed = color_set(tmp_path), color_set(tmp_path)
    assert data_hash(plain) == data_hash(changed)
    assert changed.test.labels is not None
    changed.test.labels[4] = 0
    others = [changed, color_set(tmp_path, classes=("r", "g", "b"))]
    others.append(color_set(tmp_path, eval_classes=(0, 2)))
    assert len({data_hash(one) for one in (plain, *others)}) == 4


@pytest.mark.parametrize("limit", [2**28, 10])
def test_a_mask_that_was_corrected_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(module, "MAX_HASHED_BYTES", limit)  # of many masks a sample is read
    data = read_set(str(write_dense(tmp_path / "farm", "masks")))
    before = data_hash(data)
    mask = Path(data.test.targets[0])
    content = bytearray(mask.read_bytes())
    content[-20] ^= 1
    mask.write_bytes(content)
    assert data_hash(data) != before


def test_rows_name_the_evaluated_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_quick_protocols(monkeypatch)
    data = read_set(str(write_dense(tmp_path / "farm", "masks")))
    evaluator = evaluator_in(tmp_path)
    evaluator.models["colors"] = ColorModel()
    some = dataclasses.replace(data, eval_classes=(0, 2), facts={"list": "first"})
    evaluator.datasets["farm", False] = some
    wanted = job("dense-knn", data="farm", model="colors", protocol="quick", resolution=None)
    (facts,) = {str(row.data_facts) for row in evaluator.run_job(wanted)}
    assert facts == str({"list": "first", "scored": [data.classes[0], data.classes[2]]})
