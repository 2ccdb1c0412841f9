"""What a labelled set is: pictures in parts, and what is to be told of each of them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veca.data.input_table import Input, InputTable

Kind = Literal["classes", "masks", "depth"]
"""What is told of a picture: its class or classes, the class of each pixel, or its depth."""

IGNORED = 255
"""The class of pixels that do not count."""

Target = NDArray[np.uint8] | NDArray[np.float32]
"""Classes of the pixels, after the set's own map, `IGNORED` where they do not count; or metres, 0
where they are unknown (height, width)."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A part of a set: N pictures in a fixed order, with what is to be told of them."""

    name: str
    """As its makers call it: 'train', 'val', 'test', 'trainval', 'trainaug', ..."""

    pictures: InputTable
    """One row a picture (N)."""

    keys: tuple[str, ...]
    """Name of each picture below the folder of the set, the same wherever that lies (N)."""

    labels: NDArray[Any] | None = None
    """Classes: numbers (N), or booleans (N, classes) where a picture may have several or none."""

    counted: NDArray[np.bool_] | None = None
    """Of labels (N, classes) those that count, either way; None where all do."""

    targets: tuple[str, ...] = ()
    """Masks and depth: the file of each picture (N)."""

    read_target: Callable[[str], Target] | None = None
    """Reads such a file; a function of a module, so that worker processes can have it."""

    def __len__(self) -> int:
        return len(self.pictures)

    def picture(self, index: int) -> Input:
        """Where a picture lies."""
        return self.pictures[index]

    def target(self, index: int) -> Target:
        """Mask or depth of a picture, at its own resolution."""
        if self.read_target is None:
            raise ValueError(f"the pictures of {self.name!r} have labels, not masks or depth.")
        return self.read_target(self.targets[index])

    def fingerprint(self) -> str:
        """SHA-256 over the pictures, by name and size, in their order."""
        found = hashlib.sha256()
        for key, size in zip(self.keys, self.pictures.sizes.tolist(), strict=True):
            found.update(f"{key}\0{size}\n".encode("utf-8", "surrogateescape"))
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class DepthFacts:
    """What the numbers of a depth set mean, and where they count."""

    least: float = 1e-3
    """Metres; a depth that is not above counts as unknown."""

    most: float = 10.0
    """Metres; a depth that is not below counts as unknown."""

    crop: Literal["none", "eigen-nyu", "garg-kitti", "eigen-kitti"] = "none"
    """The pixels of a test picture that count."""

    kb_crop: bool = False
    """Whether pictures and depth are first cut to KITTI's 352 x 1216 pixels, bottom and middle."""

    nyu_crop: bool = False
    """Whether training pictures lose NYU's white frame first (x 43..608, y 45..472)."""


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """A set with its parts."""

    name: str
    """Such as 'imagenet-1k'; of a plain layout the name of its folder."""

    kind: Kind

    classes: tuple[str, ...] = ()
    """Names, by number."""

    train: Split | None
    """To fit heads on; None where a head of another set is measured (`head_of`)."""

    held_out: Split | None = None
    """The makers' own part to choose settings on, where there is one."""

    test: Split
    """What numbers are reported on."""

    head_of: str | None = None
    """The set whose head is measured here, such as 'imagenet-1k'."""

    scored: tuple[int, ...] | None = None
    """Classes over which a mean over classes goes; None means all."""

    per_class: bool = False
    """Whether its literature reports the mean of the classes' accuracies first."""

    depth: DepthFacts | None = None

    missing: tuple[str, ...] = ()
    """Sentences about what is not as its makers published it; not empty means partial."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What else a report should say, such as which of several lists was used."""
