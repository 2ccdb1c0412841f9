"""Losses of five steps and kept teacher outputs, written down: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/distill/test_golden.py` and say why in the commit.
"""

import dataclasses
from pathlib import Path
from typing import get_args

from tests.distill.cached_outputs import CPU, opened, task_of
from tests.distill.runs import ALONE, TINY, PixelTeacher, pictures, rows, run, small_config
from tests.golden import assert_unmoved, fingerprint, golden
from veca.backbone.config import SIZES
from veca.data.listing import ImageIndex
from veca.distill.config import CacheConfig, KeptPrecision
from veca.train.schedules import ScheduleConfig

FIELDS = ("loss", "loss_image", "loss_patch_cosine", "loss_patch_error", "gradient_norm")

# Orthogonalized steps amplify the rounding in which machines differ.
GENTLE = ScheduleConfig(peak=5e-4, minimum=5e-5, warmup_steps=2)


def losses(out: Path) -> dict[str, list[float]]:
    """The numbers of a run's log."""
    return {
        f"{row['kind']} {row.get('step', '')} {row.get('budget', '')} {row.get('ffn', '')}": [
            row[name] for name in FIELDS if name in row
        ]
        for row in rows(out)
    }


def test_five_steps_of_tiny_have_the_losses_they_always_had(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images")
    backbone = dataclasses.replace(SIZES["tiny"], local_kernel=0, ffn_shares=(0.25, 0.5, 1.0))
    config = small_config(
        images, backbone=backbone, steps=5, validate_every=5, ema=0.99, schedule=GENTLE
    )
    run(config, tmp_path / "run", ALONE)
    found = losses(tmp_path / "run")
    assert_unmoved(found, golden("distill", found))


def test_five_steps_with_local_mixing_and_kept_outputs_have_the_losses_they_always_had(
    tmp_path: Path,
) -> None:
    config = small_config(
        pictures(tmp_path / "images"),
        backbone=dataclasses.replace(TINY, local_kernel=3, core_motion="attention"),
        teacher_margin=16,
        teacher_surroundings="contextual",
        cache=CacheConfig(crops=2, dtype="float16"),
        steps=5,
        validate_every=5,
        ema=0.99,
        schedule=GENTLE,
    )
    run(config, tmp_path / "run", ALONE, cache_teacher=tmp_path / "kept")
    found = losses(tmp_path / "run")
    assert_unmoved(found, golden("distill_local", found))


def test_kept_teacher_outputs_are_what_they_always_were(tmp_path: Path) -> None:
    index = ImageIndex.load_or_list(pictures(tmp_path / "images", 6))
    found = {}
    for dtype in get_args(KeptPrecision):
        cache = opened(
            tmp_path / dtype,
            index,
            [PixelTeacher()],
            CacheConfig(crops=2, dtype=dtype),
            teacher_margin=16,
            teacher_surroundings="contextual",
        )
        (kept,) = cache.lookup(task_of([0, 1, 3, 5], [0, 1, 1, 0]), CPU)
        found[f"image features as {dtype}"] = fingerprint(kept.image)
        found[f"patch features as {dtype}"] = fingerprint(kept.patches)
    # Another machine may round single values to the neighboring one, which moves the sums so far.
    assert_unmoved(found, golden("teacher_cache", found), rel=1e-4)
