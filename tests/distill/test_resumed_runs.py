"""A run that stops and goes on takes the steps of one that never stopped."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import veca.distill.training as training_module
from tests.distill.runs import ALONE, pictures, rows, run, small_config
from veca.distill.config import CacheConfig, Efficiency
from veca.distill.run_folder import RunError
from veca.distill.training import NonFiniteError, Training
from veca.runtime.device import Precision


class PowerCutError(Exception):
    """Ends a run at a chosen step, in the middle of things."""


@contextmanager
def cut_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every run fail when it begins a step."""
    take_step = Training.take_step

    def failing(self: Training, *arguments: Any) -> Any:
        if self.progress.step == step:
            raise PowerCutError
        return take_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training_module.Training, "take_step", failing)
        yield


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def lasting_rows(out: Path) -> list[str]:
    """Rows of the log by their places, the last one of a place, but no word of resumes."""
    places: dict[Any, str] = {}
    for row in rows(out):
        if row["kind"] != "resume":
            place = tuple(row.get(name) for name in ("kind", "step", "budget", "ffn", "resolution"))
            places[place] = json.dumps(row)
    return list(places.values())


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_resumed_run_takes_the_same_steps_as_one_that_never_stopped(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, ema: float | None
) -> None:
    config = small_config(images, ema=ema)
    run(config, tmp_path / "whole")
    with cut_at(step, monkeypatch), pytest.raises(PowerCutError):
        run(config, tmp_path / "cut")
    torch.manual_seed(99)  # nothing of this process's own state may matter
    run(config, tmp_path / "cut", dataclasses.replace(ALONE, workers=1), resume=True)

    assert lasting_rows(tmp_path / "cut") == lasting_rows(tmp_path / "whole")
    for name in ("best", "last"):
        files = [tmp_path / kind / name / "model.safetensors" for kind in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes()
    resumed = [row["step"] for row in rows(tmp_path / "cut", "resume")]
    assert resumed == ([] if step < 4 else [4])


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_checkpoint_is_named_and_passed_over(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    config = small_config(images)
    run(config, tmp_path / "run")
    whole = (tmp_path / "run" / "last" / "model.safetensors").read_bytes()
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    file = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    file.unlink()
    if damage != "missing":
        file.write_bytes(content if damage == "flip" else content[:-1])

    assert run(config, tmp_path / "run", resume=True, shown=True).step == 8
    assert newest.name in capfd.readouterr().err
    assert [row["step"] for row in rows(tmp_path / "run", "resume")] == [4]
    assert (tmp_path / "run" / "last" / "model.safetensors").read_bytes() == whole


def test_a_loss_that_is_not_finite_skips_the_step_and_leaves_all_state_alone(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(images)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    accumulate, take_step = Training._accumulate, Training.take_step

    def poisoned(self: Training, *arguments: Any) -> Any:
        parts = accumulate(self, *arguments)
        if self.progress.step in {2, 3}:
            first = next(self.student.parameters())
            first.grad = torch.full_like(first, float("nan" if self.progress.step == 2 else "inf"))
        return parts

    def watched(self: Training, *arguments: Any) -> Any:
        report = take_step(self, *arguments)
        state = {**self.optimizers.tensors(), **dict(self.student.named_parameters())}
        seen[self.progress.step] = {name: value.detach().clone() for name, value in state.items()}
        return report

    monkeypatch.setattr(Training, "_accumulate", poisoned)
    monkeypatch.setattr(Training, "take_step", watched)
    run(config, tmp_path / "run")

    skipped = [row for row in rows(tmp_path / "run", "train") if row.get("skipped")]
    assert [row["step"] for row in skipped] == [2, 3]
    assert all(row["gradient_norm"] is None for row in skipped)
    for step in (3, 4):
        assert seen[step].keys() == seen[2].keys()
        assert all(torch.equal(seen[step][name], seen[2][name]) for name in seen[2])
    assert not all(torch.equal(seen[5][name], seen[2][name]) for name in seen[2])


def test_too_many_skips_in_a_row_stop_the_run_and_its_checkpoints_stay_finite(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate = Training._accumulate

    def poisoned(self: Training, *arguments: Any) -> Any:
        parts = accumulate(self, *arguments)
        return parts * (float("nan") if self.progress.step >= 5 else 1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_accumulate", poisoned)
        with pytest.raises(NonFiniteError, match="3 steps in a row"):
            run(small_config(images, steps=20, max_skips=2), tmp_path / "run")
    assert [row["loss"] for row in rows(tmp_path / "run", "train")][5:] == [None] * 3
    assert run(small_config(images, steps=20, max_skips=2), tmp_path / "run", resume=True).finished


def test_a_disk_that_fills_up_leaves_training_running_and_the_old_checkpoint_whole(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from veca.runtime.snapshots import Snapshots  # noqa: PLC0415

    save = Snapshots.save

    def full(self: Snapshots, step: int, *arguments: Any) -> Any:
        if step in {4, 6}:
            raise OSError(28, "No space left on device")
        return save(self, step, *arguments)

    monkeypatch.setattr(Snapshots, "save", full)
    efficiency = dataclasses.replace(ALONE, save_every=2)
    assert run(small_config(images), tmp_path / "run", efficiency, shown=True).finished
    assert "Could not save the checkpoint of step 6 (" in capfd.readouterr().err
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert [name[-1] for name in names] == ["2", "8"]


def test_three_saves_that_fail_in_a_row_stop_the_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from veca.runtime.snapshots import Snapshots  # noqa: PLC0415

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Snapshots, "save", full)
    efficiency = dataclasses.replace(ALONE, save_every=1)
    with pytest.raises(RunError, match=r"3 saves in a row failed.*No space left"):
        run(small_config(images), tmp_path / "run", efficiency)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_teaches_what_the_whole_batch_teaches(
    images: Path, tmp_path: Path, parts: int
) -> None:
    config = small_config(images)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", dataclasses.replace(ALONE, accumulate=parts))
    for one, other in zip(
        rows(tmp_path / "whole", "train"), rows(tmp_path / "parts", "train"), strict=True
    ):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_kept_and_recomputed_activations_teach_the_same(images: Path, tmp_path: Path) -> None:
    config = small_config(images)
    run(config, tmp_path / "kept")
    run(config, tmp_path / "again", dataclasses.replace(ALONE, checkpoint_activations=True))
    for one, other in zip(
        rows(tmp_path / "kept", "train"), rows(tmp_path / "again", "train"), strict=True
    ):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)


def test_a_few_unreadable_images_are_listed_and_many_stop_the_run(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images")
    (images / "0003.png").write_bytes(b"no picture")
    run(small_config(images, steps=12), tmp_path / "few")
    text = (tmp_path / "few" / "unreadable.jsonl").read_text("utf-8")
    (listed,) = [json.loads(line) for line in text.splitlines()]
    assert listed["image"].endswith("0003.png")
    assert listed["reason"]
    for number in range(4, 12):
        (images / f"{number:04}.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"cannot be read .* more than the allowed share of 0\.05"):
        run(small_config(images, steps=12), tmp_path / "many")


def other(precision: Precision) -> Efficiency:
    """The small run's, in another precision."""
    return dataclasses.replace(ALONE, precision=precision)


def test_a_run_resumed_in_another_precision_goes_on_with_a_warning_and_a_row(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config, out = small_config(images), tmp_path / "run"
    cuts: list[tuple[int, Precision]] = [(5, "fp32"), (6, "bf16"), (9, "bf16")]
    for step, precision in cuts:
        with contextlib.suppress(PowerCutError), cut_at(step, monkeypatch):
            run(config, out, other(precision), resume=True, shown=True)
    assert "computed in fp32 up to step 4 and goes on in bf16" in capfd.readouterr().err
    told = {"kind": "precision", "step": 4, "precision": "bf16", "before": "fp32"}
    # The second resume is from step 4 as well: no checkpoint was written in bf16 before it.
    assert rows(out, "precision") == [told, told]
    assert rows(out, "train")[-1]["step"] == 7
    assert json.loads((out / "config.json").read_text("utf-8"))["efficiency"]["precision"] == "bf16"


def test_a_run_resumed_in_its_own_precision_says_nothing_of_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(images)
    run(config, tmp_path / "whole", other("bf16"))
    with cut_at(5, monkeypatch), pytest.raises(PowerCutError):
        run(config, tmp_path / "cut", other("bf16"))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    run(config, tmp_path / "cut", other("auto"), resume=True)
    assert rows(tmp_path / "cut", "precision") == []
    assert lasting_rows(tmp_path / "cut") == lasting_rows(tmp_path / "whole")
    written = json.loads((tmp_path / "cut" / "config.json").read_text("utf-8"))
    assert written["efficiency"]["precision"] == "bf16"  # never 'auto'


def test_bf16_trains_nearly_as_fp32_does(images: Path, tmp_path: Path) -> None:
    config = small_config(images)
    found, both = {}, cast(tuple[Precision, ...], ("fp32", "bf16"))
    for precision in both:
        run(config, tmp_path / precision, other(precision))
        found[precision] = [row["loss"] for row in rows(tmp_path / precision, "train")]
    assert found["bf16"] != found["fp32"]
    assert found["bf16"] == pytest.approx(found["fp32"], rel=0.03)


def test_kept_outputs_stay_those_of_the_first_precision(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(images, cache=CacheConfig(crops=2, dtype="float16"))
    out, kept = tmp_path / "run", tmp_path / "kept"
    with cut_at(5, monkeypatch), pytest.raises(PowerCutError):
        run(config, out, other("bf16"), cache_teacher=kept)
    (folder,) = kept.iterdir()
    facts = json.loads((folder / "facts.json").read_text("utf-8"))["facts"]
    assert facts["precision"] == "bf16"
    assert run(config, out, other("fp32"), cache_teacher=kept, resume=True).finished
    assert list(kept.iterdir()) == [folder]
