"""What kept teacher outputs depend on, in clear text and as a key.

Outputs are only ever used where all of this is the same: the teacher to its weights, the views to
their seed, the images to their names, order and sizes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.augment import ViewConfig
from veca.data.image_index import ImageIndex
from veca.distill.cache_store import CacheError
from veca.distill.config import CacheConfig
from veca.distill.margin import Margin
from veca.runtime.device import ResolvedPrecision
from veca.teacher.teacher import Teacher

FORMAT = 2
"""Rises when what is kept changes its meaning: 2 has the windows of EfficientNet in fp32."""


def kept_channels(teacher: Teacher, config: CacheConfig) -> int | None:
    """Principal components that are kept of a teacher's patches; None keeps its own channels."""
    wanted = config.channels
    return None if wanted is None or wanted >= teacher.patch_width else wanted


def cache_facts(  # noqa: PLR0913 - what outputs depend on
    teacher: Teacher,
    *,
    index: ImageIndex,
    images: NDArray[np.int64],
    config: CacheConfig,
    views: ViewConfig,
    sizes: Sequence[int],
    patch_size: int,
    precision: ResolvedPrecision,
    margin: Margin = Margin(),  # noqa: B008 - it is frozen
) -> dict[str, Any]:
    """All that outputs of a teacher depend on but their resolution, which names a folder below.

    Several resolutions share one projection, so that the student has one thing to predict; it is
    fitted at the largest of them, on which the others so depend.
    """
    channels = kept_channels(teacher, config)
    facts = {
        "format": FORMAT,
        "teacher": teacher_facts(teacher),
        "images": {
            "count": len(images),
            "names": index.fingerprint(),
            "numbers": _digest(images),
            "bytes": _digest(index.table.sizes[index.rows[images]]),
        },
        "views": dataclasses.asdict(views),
        "seed": config.seed,
        "crops": config.crops,
        "dtype": config.dtype,
        "channels": channels,
        "projection_fitted_at": None if channels is None else max(sizes),
        "patch_size": patch_size,
        "precision": precision,
        **margin.facts(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts))  # as it will be read again
    return plain


def teacher_facts(teacher: Teacher) -> dict[str, Any]:
    """What tells a teacher from another: its name, kind, widths and weights."""
    if teacher.digest is None:
        raise CacheError(
            f"outputs of the teacher {teacher.name} cannot be kept, since it has no digest by "
            "which they would be found again; give it one, or leave --cache-teacher out."
        )
    return {"name": teacher.name, **teacher.identity(), "digest": teacher.digest}


def key_of(facts: dict[str, Any]) -> str:
    """The key of facts; others have another one."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(numbers: NDArray[np.int64]) -> str:
    """A hash over numbers in their order."""
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").data).hexdigest()
