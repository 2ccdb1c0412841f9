"""Setting a run up: images, teachers, targets, student."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.distill.built import CPU, ONE, Built, build, place_of
from tests.distill.runs import ALONE, TINY, PixelTeacher, pictures, small_config
from veca.data.loader import BatchSpec, batches, sample_order
from veca.distill.config import CacheConfig, DistillConfig
from veca.distill.feed import Pictures
from veca.distill.losses import LossConfig
from veca.distill.run_folder import RunError
from veca.distill.setup import (
    find_pictures,
    find_teachers,
    fit_to_teachers,
    memory_lines,
)
from veca.runtime.distributed import Ranks
from veca.runtime.shards import StoppedError
from veca.teacher.teacher import Targets


class ForgetfulRanks(Ranks):
    """One of two processes, the other of which sees other images."""

    def broadcast_object(self, value: Any) -> Any:
        """What the other one says."""
        return f"other {value}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def found_pictures(images: Path, out: Path, **changes: Any) -> Pictures:
    """The images of a run."""
    return find_pictures(small_config(images, **changes), place_of(out))


def test_every_image_is_trained_on_or_held_out(images: Path, tmp_path: Path) -> None:
    found = found_pictures(images, tmp_path)
    assert len(found.validation) == 2
    both = np.concatenate((found.training, found.validation))
    assert sorted(both.tolist()) == list(range(24))
    again = found_pictures(images, tmp_path)
    assert again.validation.tolist() == found.validation.tolist()
    assert again.fingerprint == found.fingerprint
    assert (tmp_path / "index" / "training.images").is_file()


def test_at_most_a_tenth_is_held_out(images: Path, tmp_path: Path) -> None:
    assert len(found_pictures(images, tmp_path, validation_images=1000).validation) == 2


def test_validation_images_of_their_own_leave_all_others_to_train_on(
    images: Path, tmp_path: Path
) -> None:
    own = pictures(tmp_path / "own", 5)
    found = found_pictures(images, tmp_path / "run", validation=str(own), validation_images=3)
    assert found.training.tolist() == list(range(24))
    assert len(set(found.validation.tolist())) == 3
    assert len(found.validation_index) == 5


def test_validation_images_that_lie_among_the_others_are_left_out_of_the_training(
    tmp_path: Path,
) -> None:
    images = pictures(tmp_path / "images", 12)
    inner = pictures(images / "judged", 4)
    told: list[str] = []
    config = small_config(images, validation=str(inner), validation_images=4)
    found = find_pictures(config, place_of(tmp_path / "run", say=told.append))
    names = {found.index[image].name for image in found.training.tolist()}
    assert len(found.index) == 16
    assert len(names) == 12
    assert not any("judged" in name for name in names)
    assert [line for line in told if "4 images to validate on are among" in line]


@pytest.mark.parametrize(("most", "left"), [(5, 5), (22, 22), (1000, 22)])
def test_some_of_the_images_can_be_taken_chosen_by_name(
    images: Path, tmp_path: Path, most: int, left: int
) -> None:
    whole = found_pictures(images, tmp_path / "a")
    found = found_pictures(images, tmp_path / "b", most_images=most)
    assert len(found.training) == left
    assert found.training.tolist() == sorted(set(found.training.tolist()))
    assert set(found.training.tolist()) <= set(whole.training.tolist())
    assert found.validation.tolist() == whole.validation.tolist()
    fewer = found_pictures(images, tmp_path / "c", most_images=max(1, left - 1))
    assert set(fewer.training.tolist()) < set(found.training.tolist())  # more of the same


def test_pictures_in_the_folder_of_the_run_are_none_of_its_images(tmp_path: Path) -> None:
    folder = pictures(tmp_path, 5)
    pictures(folder / "run" / "pictures", 3)
    assert len(found_pictures(folder, folder / "run").index) == 5
    assert len(found_pictures(folder / "run" / "pictures", folder / "run").index) == 3


def test_a_run_without_images_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no images are named; give --images with a folder"):
        find_pictures(DistillConfig(backbone=TINY), place_of(tmp_path))


def test_too_few_images_to_train_and_validate_are_refused(tmp_path: Path) -> None:
    one = pictures(tmp_path / "one", 1)
    with pytest.raises(RunError, match=r"holds 1 images, of which 1 are left .* and 0 to validate"):
        found_pictures(one, tmp_path / "run")


def test_what_holds_no_images_is_told(images: Path, tmp_path: Path) -> None:
    mixed = pictures(tmp_path / "mixed", 3)
    (mixed / "torn.tar").write_bytes(b"no shard" * 100)
    said: list[str] = []
    find_pictures(small_config(mixed), place_of(tmp_path / "run", say=said.append))
    assert len(said) == 1
    assert "torn.tar" in said[0]


def test_processes_that_find_different_images_are_refused(images: Path, tmp_path: Path) -> None:
    place = place_of(tmp_path, ForgetfulRanks(rank=1, world_size=2, device=CPU))
    with pytest.raises(RunError, match="the processes of this run found different images"):
        find_pictures(small_config(images), place)


def test_teachers_are_found_by_name_unless_they_are_given() -> None:
    config = small_config(Path("nowhere"), teacher=("tests.distill.runs:PixelTeacher",) * 2)
    found = find_teachers(config, None)
    assert [type(teacher).__name__ for teacher in found] == ["PixelTeacher"] * 2
    given = [PixelTeacher()]
    assert find_teachers(config, given) == given


def test_a_training_is_built_from_its_configuration(images: Path, tmp_path: Path) -> None:
    plain = build(images, place_of(tmp_path)).training
    assert plain.average is None
    assert plain.cache is None
    assert plain.model is plain.student
    assert plain.length == 8
    assert plain.progress.step == 0
    assert not plain.student.backbone.checkpoint_activations
    efficiency = dataclasses.replace(ALONE, checkpoint_activations=True)
    other = build(images, place_of(tmp_path), efficiency, ema=0.5, steps=None, epochs=3.0).training
    assert other.average is not None
    assert other.length == 17  # 22 images three times in batches of four
    assert other.student.backbone.checkpoint_activations


def first_views(run: Built, count: int) -> list[Tensor]:
    """First views of the images that the run takes first."""
    config = run.training.config
    (task,) = list(_first_task(run, count))
    found = batches(
        run.pictures.index, [task], seed=config.seed, config=config.views, num_workers=0,
        replacements=run.pictures.training,
    )  # fmt: skip
    return [batch.images for batch in found]


def _first_task(run: Built, count: int) -> list[BatchSpec]:
    """One task of the first images of the first epoch."""
    places, _ = sample_order(len(run.pictures.training), count, 0, run.training.config.seed)
    return [BatchSpec(0, 0, run.pictures.training[places], np.zeros(count, np.int64), 32)]


@pytest.mark.parametrize("count", [8, 1000])
def test_statistics_are_those_of_the_first_views_of_training_images(
    images: Path, tmp_path: Path, count: int
) -> None:
    run = build(images, place_of(tmp_path), statistics_images=count)
    (answer,) = fit_to_teachers(run.training, run.pictures, lambda: False)
    (views,) = first_views(run, min(count, 22))
    targets: Targets = PixelTeacher()(views, (4, 4))
    scaling = run.training.source.scaling(0)
    torch.testing.assert_close(scaling.image_center, targets.image.mean(0))
    torch.testing.assert_close(scaling.patch_center, targets.patches.mean((0, 1)))
    deviations = targets.patches - targets.patches.mean((0, 1))
    torch.testing.assert_close(scaling.patch_scale, deviations.square().mean().sqrt())
    scaled = scaling(targets)
    units = scaled.image.double() / scaled.image.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(answer.image, units.mean(0), rtol=1e-4, atol=1e-5)


def test_only_the_first_process_computes_statistics(images: Path, tmp_path: Path) -> None:
    run = build(images, place_of(tmp_path))
    run.training.workers = Ranks(rank=1, world_size=2, device=CPU)
    (answer,) = fit_to_teachers(run.training, run.pictures, lambda: False)
    assert float(run.training.source.scaling(0).image_scale) == 1.0  # to be overwritten
    assert answer.image.shape == (12,)
    assert answer.patches.shape == (20,)


def test_statistics_end_when_a_stop_is_asked_for(images: Path, tmp_path: Path) -> None:
    run = build(images, place_of(tmp_path))
    with pytest.raises(StoppedError):
        fit_to_teachers(run.training, run.pictures, lambda: True)
    assert float(run.training.source.scaling(0).image_scale) == 1.0


def test_statistics_without_scaling_leave_the_targets_alone(images: Path, tmp_path: Path) -> None:
    run = build(images, place_of(tmp_path), scale_targets=False)
    fit_to_teachers(run.training, run.pictures, lambda: False)
    scaling = run.training.source.scaling(0)
    assert float(scaling.image_scale) == 1.0
    assert not scaling.image_center.any()


def test_cached_outputs_give_the_statistics(images: Path, tmp_path: Path) -> None:
    place = place_of(tmp_path / "run", cache=tmp_path / "kept")
    run = build(images, place, cache=CacheConfig(crops=2, dtype="float16"))
    assert run.training.cache is not None
    fit_to_teachers(run.training, run.pictures, lambda: False)
    task = _first_task(run, 8)[0]
    kept = run.training.source.scaled(run.training.cache.lookup(task, CPU))[0]
    assert kept.patches.mean((0, 1)).abs().max() < 1e-3
    assert float(kept.patches.square().mean()) == pytest.approx(1, abs=1e-3)


def test_memory_is_told_before_it_is_needed(images: Path) -> None:
    lines = memory_lines(small_config(images, ema=0.9), ALONE, ONE, [PixelTeacher()])
    assert any("student weights" in line for line in lines)
    assert any("moving average" in line for line in lines)
    assert lines[-1].startswith("together, at least")


def test_a_margin_that_does_not_fit_the_teachers_is_refused_as_soon_as_they_are_found() -> None:
    config = small_config(Path(), teacher_margin=24)
    with pytest.raises(RunError, match=r"teacher_margin=24 does not end with a cell .* 16 pixels"):
        find_teachers(config, [PixelTeacher()])


@pytest.mark.parametrize("surroundings", ["reflected", "contextual"])
def test_statistics_are_those_of_targets_within_the_margin(
    images: Path, tmp_path: Path, surroundings: str
) -> None:
    place = place_of(tmp_path)
    run = build(images, place, teacher_margin=16, teacher_surroundings=surroundings)
    fit_to_teachers(run.training, run.pictures, lambda: False)
    (batch,) = batches(
        run.pictures.index,
        _first_task(run, 8),
        seed=run.training.config.seed,
        config=run.training.config.views,
        num_workers=0,
        margin=run.training.source.margin.loaded,
    )
    targets = run.training.source.margin.ask(PixelTeacher(), batch.images, (4, 4))
    scaling = run.training.source.scaling(0)
    torch.testing.assert_close(scaling.patch_center, targets.patches.mean((0, 1)))
    torch.testing.assert_close(scaling.image_center, targets.image.mean(0))


def test_classes_need_a_teacher_that_tells_them() -> None:
    config = small_config(Path("nowhere"), loss=LossConfig(classes=1.0))
    with pytest.raises(RunError, match=r"needs a teacher that tells classes, but pixels tells"):
        find_teachers(config, [PixelTeacher()])
