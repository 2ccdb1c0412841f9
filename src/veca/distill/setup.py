"""Everything a run needs, built in order: images, teachers, targets, student, optimizers."""

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from veca.data.listing import ImageIndex, split_train_val
from veca.data.loader import BatchSpec, batches, sample_order
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.feed import Pictures, Unreadable
from veca.distill.margin import find_margin
from veca.distill.memory_estimate import estimate
from veca.distill.meter import Meter
from veca.distill.parallel import EMA, compile_blocks, spread
from veca.distill.run_folder import RunError, RunFolder
from veca.distill.student import build_student
from veca.distill.target_scaling import Constants
from veca.distill.targets import TargetSource, fit_targets
from veca.distill.teacher_cache import TeacherCache, open_teacher_cache
from veca.distill.training import Training
from veca.distill.validation import cells
from veca.runtime.device import ResolvedPrecision, autocast, resolve_precision
from veca.runtime.distributed import Ranks
from veca.runtime.shards import StoppedError
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import Targets, Teacher
from veca.train.optimizers import Optimizers

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and under whose eyes a run is set up."""

    folder: RunFolder
    workers: Ranks
    say: Say
    asked_to_stop: Callable[[], bool]
    cache_folder: Path | None
    """Where teacher outputs are kept."""
    resuming: bool = False
    """Whether a checkpoint will be restored."""
    kept_in: ResolvedPrecision | None = None
    """What the teachers computed the kept outputs of a resumed run with: its targets, and so their
    precision, stay what they were; None: what the run computes with."""


def find_pictures(config: DistillConfig, place: Place) -> Pictures:
    """The images to train and to validate on; the first process lists them, the others follow."""
    if config.images is None:
        raise RunError("no images are named; give --images with a folder, shards, list or pattern.")
    workers = place.workers
    if not workers.is_main:
        workers.barrier()
    resume = place.resuming or not workers.is_main  # other ranks read the list of rank 0
    index = ImageIndex.load_or_list(
        config.images, place.folder.index("training"), resume=resume, exclude=place.folder.path
    )
    training, validation = split_train_val(index, config.validation_images)
    validation_index = index
    if config.validation is not None:
        training = np.arange(len(index))
        validation_index = ImageIndex.load_or_list(
            config.validation, place.folder.index("validation"), resume=resume
        )
        everything = np.arange(len(validation_index))
        validation = _some(validation_index, everything, config.validation_images)
        training = _without(index, training, validation_index, validation, place.say)
    if workers.is_main:
        workers.barrier()
    training = _some(index, training, config.most_images)
    if not len(validation) or not len(training):
        raise RunError(
            f"{config.images} holds {len(index)} images, of which {len(training)} are left to "
            f"train and {len(validation)} to validate on; give more images, or validation images "
            "of their own with --validation."
        )
    pictures = Pictures(
        index=index,
        training=training,
        validation_index=validation_index,
        validation=validation,
    )
    if workers.any(workers.broadcast_object(pictures.fingerprint) != pictures.fingerprint):
        raise RunError(
            f"the processes of this run found different images in {config.images}; give all of "
            "them the same files."
        )
    for problem in index.problems:
        place.say(problem)
    return pictures


def _some(index: ImageIndex, images: NDArray[np.int64], most: int | None) -> NDArray[np.int64]:
    """At most so many images, in rising order, chosen by the keys of their names."""
    if most is None or most >= len(images):
        return images
    return np.sort(images[np.argsort(index.keys[images], kind="stable")[:most]])


def _without(
    index: ImageIndex,
    training: NDArray[np.int64],
    validation_index: ImageIndex,
    validation: NDArray[np.int64],
    say: Say,
) -> NDArray[np.int64]:
    """The training images without those to validate on, where folders lie in each other."""
    names = index.table.keys[index.rows[training]]
    others = validation_index.table.keys[validation_index.rows[validation]]
    common = np.isin(names, others)
    if common.any():
        say(
            f"{int(common.sum()):,} images to validate on are among those to train on; they are "
            "left out of the training."
        )
    return training[~common]


def find_teachers(config: DistillConfig, given: Sequence[Teacher] | None) -> list[Teacher]:
    """The teachers by their names, or those that were given."""
    found = list(given) if given is not None else [load_teacher(name) for name in config.teacher]
    if config.loss.classes > 0 and not any(teacher.num_classes for teacher in found):
        raise RunError(
            f"loss.classes={config.loss.classes} needs a teacher that tells classes, but "
            f"{', '.join(teacher.name for teacher in found)} tells none; add efficientnet-lite2, "
            "or set it to 0."
        )
    find_margin(config, found)  # which refuses what does not fit
    return found


def open_cache(
    config: DistillConfig,
    efficiency: Efficiency,
    pictures: Pictures,
    teachers: Sequence[Teacher],
    place: Place,
) -> TeacherCache | None:
    """Teacher outputs on disk, computed now where they are missing; None where none are wanted."""
    if place.cache_folder is None:
        return None
    now = resolve_precision(efficiency.precision, place.workers.device)
    return open_teacher_cache(
        place.cache_folder,
        config,
        efficiency,
        index=pictures.index,
        images=pictures.training,
        teachers=teachers,
        precision=place.kept_in or now,
        ranks=place.workers,
        stop=place.asked_to_stop,
    )


def keep_outputs(
    config: DistillConfig, efficiency: Efficiency, given: Sequence[Teacher] | None, place: Place
) -> bool:
    """Compute only the teacher outputs that a training would miss; False where it was stopped."""
    try:
        pictures = find_pictures(config, place)
        teachers = [one.to(place.workers.device) for one in find_teachers(config, given)]
        open_cache(config, efficiency, pictures, teachers, place)
    except StoppedError:
        return False
    return True


def build_training(
    config: DistillConfig,
    efficiency: Efficiency,
    pictures: Pictures,
    teachers: Sequence[Teacher],
    place: Place,
) -> Training:
    """The live objects of a run before its first step."""
    workers = place.workers
    for teacher in teachers:
        teacher.to(workers.device)
    cache = open_cache(config, efficiency, pictures, teachers, place)
    margin = find_margin(config, teachers)
    anchors = min(config.statistics_images, len(pictures.training)) if config.loss.anchors else 0
    source = TargetSource(teachers, efficiency.teacher_batch, margin, anchors)
    source.to(workers.device)
    student = build_student(config, source.widths, teachers, place.resuming).to(workers.device)
    student.backbone.checkpoint_activations = efficiency.checkpoint_activations
    ways = len(cells(config.student)) * max(1, len(config.student.ffn_shares))
    compile_blocks(student, efficiency, 2 * ways * len(config.sizes))
    model = spread(student, workers, efficiency.shard)
    precision = resolve_precision(efficiency.precision, workers.device)
    return Training(
        config=config,
        efficiency=efficiency,
        length=config.length(len(pictures.training)),
        workers=workers,
        student=student,
        model=model,
        source=source,
        cache=cache,
        optimizers=Optimizers(student, config.optimizer, precision),
        average=None if config.ema is None else EMA(student, config.ema),
        unreadable=Unreadable(
            pictures.index,
            len(pictures.training),
            config.max_unreadable,
            workers,
            place.folder.unreadable,
        ),
        meter=Meter(device=workers.device),
    )


def fit_to_teachers(
    training: Training, pictures: Pictures, asked_to_stop: Callable[[], bool]
) -> list[Constants]:
    """Set center and scale of the targets and find the best constant answers, once, on rank 0."""
    source, workers, config = training.source, training.workers, training.config
    constants = [
        Constants(*(torch.zeros(width, dtype=torch.float64) for width in widths))
        for widths in source.widths
    ]
    kept: list[list[Targets]] = []
    if workers.is_main:
        with closing(_statistics(training, pictures)) as found:
            kept = list(itertools.takewhile(lambda _: not asked_to_stop(), found))
    if workers.any(asked_to_stop()):
        raise StoppedError
    if workers.is_main:
        constants = fit_targets(source, kept, config.scale_targets, config.loss)
    for tensor in source.scalings.state_dict().values():
        workers.broadcast(tensor)
    for answer in constants:
        for tensor in answer:
            workers.broadcast(tensor)
    return constants


def memory_lines(
    config: DistillConfig, efficiency: Efficiency, workers: Ranks, teachers: Sequence[Teacher]
) -> list[str]:
    """An estimate of what one process needs, before it is needed."""
    parts = workers.world_size * efficiency.accumulate
    found = estimate(
        config.student,
        batch=config.batch // parts,
        resolution=config.sizes[-1],
        optimizer=config.optimizer.matrices,
        precision=resolve_precision(efficiency.precision, workers.device),
        checkpointing=efficiency.checkpoint_activations,
        teacher_parameters=sum(p.numel() for one in teachers for p in one.parameters()),
        ema=config.ema is not None,
    )
    return found.describe()


def _statistics(training: Training, pictures: Pictures) -> Generator[list[Targets], None, None]:
    """Unscaled targets of the first training images in their first views."""
    config, device = training.config, training.workers.device
    count = min(config.statistics_images, len(pictures.training))
    places, _ = sample_order(len(pictures.training), count, 0, config.seed)
    images, resolution = pictures.training[places], config.sizes[0]
    tasks = [
        BatchSpec(0, part, some, np.zeros(len(some), np.int64), resolution)
        for part, some in enumerate(np.array_split(images, -(-count // 32)))
    ]
    side = config.student.patch_size
    grid = (resolution // side, resolution // side)
    if training.cache is not None:
        for task in tasks:
            yield [_on_cpu(targets) for targets in training.cache.lookup(task, device)]
        return
    found = batches(
        pictures.index,
        tasks,
        seed=config.seed,
        config=config.views,
        num_workers=training.efficiency.workers,
        replacements=pictures.training,
        margin=training.source.margin.loaded,
    )
    with torch.no_grad(), autocast(device, training.precision):
        for batch in found:
            raw = training.source.raw(batch.images.to(device), grid)
            yield [_on_cpu(targets) for targets in raw]


def _on_cpu(targets: Targets) -> Targets:
    """Targets in the memory of the machine."""
    return Targets(targets.image.float().cpu(), targets.patches.float().cpu())
