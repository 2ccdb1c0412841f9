"""How much of a network's patch features is a frame: told by the distance from the border alone.

    python docs/results/2026-11-18_clean-targets/border.py efficientnet-lite2 --margins 0 32 64 96
    python docs/results/2026-11-18_clean-targets/border.py veca-tiny

Per margin, over the photos: the share of the variance of patches that their ring explains (rings
count from the border), how far the mean of each ring lies from the mean of all, squared, in total
variances, and the cosine of the patch in the middle of a gray picture with others.
"""

import argparse
import sys
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from veca.distill.margin import Margin

from veca.data.augment import ViewConfig
from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec, batches
from veca.distill.config import Surroundings
from veca.teacher.registry import load_teacher
from veca.teacher.teacher import Teacher

LOT = 4
"""Photos that go through the network together."""


class Frame(NamedTuple):
    """What the distance from the border tells of patches."""

    explained: float
    offsets: list[float]


def frame(patches: Tensor) -> Frame:
    """Of the patches (photos, side, side, channels) of all photos."""
    side = patches.shape[1]
    places = torch.arange(side)
    depth = torch.minimum(places, side - 1 - places)
    ring = torch.minimum(depth[:, None], depth)
    mean = patches.mean(dim=(0, 1, 2))
    total = (patches - mean).square().sum(dim=-1).mean()
    offsets, explained = [], 0.0
    for number in range((side + 1) // 2):
        inside = ring == number
        distance = (patches[:, inside].mean(dim=(0, 1)) - mean).square().sum() / total
        offsets.append(float(distance))
        explained += float(distance * inside.float().mean())
    return Frame(explained, offsets)


def seen(teacher: Teacher, images: Tensor, resolution: int, margin: Margin) -> Tensor:
    """Patches as a map, in double precision; images bring the margin that is loaded."""
    side = resolution // teacher.stride
    found = margin.ask(teacher, images, (side, side)).patches
    return found.unflatten(1, (side, side)).double()


def over_photos(
    teacher: Teacher, index: ImageIndex, wanted: argparse.Namespace, margin: Margin
) -> Tensor:
    """Patches of photos that are spread over all of them, each from its middle."""
    numbers = np.arange(wanted.count) * len(index) // wanted.count
    tasks = [
        BatchSpec(0, 0, some, np.zeros_like(some), wanted.resolution)
        for some in np.split(numbers, range(LOT, wanted.count, LOT))
    ]
    config = ViewConfig(margin=wanted.scale)
    found = batches(
        index, tasks, seed=0, config=config, num_workers=0, training=False, margin=margin.loaded
    )
    return torch.cat([seen(teacher, batch.images, wanted.resolution, margin) for batch in found])


def of_gray(teacher: Teacher, resolution: int, margin: Margin) -> list[float]:
    """Cosines of the middle with a patch four away, the edge and the corner, where all is gray."""
    side = resolution + 2 * margin.loaded
    images = torch.full((1, 3, side, side), 128, dtype=torch.uint8)
    patches = seen(teacher, images, resolution, margin)[0]
    middle = len(patches) // 2
    others = [patches[middle, middle - 4], patches[middle, 0], patches[0, 0]]
    return [float(F.cosine_similarity(patches[middle, middle], other, dim=0)) for other in others]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", help="a teacher, or what veca.load reads")
    parser.add_argument("--margins", type=int, nargs="+", default=[0], help="pixels of its input")
    parser.add_argument("--surroundings", default="reflected", choices=Surroundings.__args__)
    parser.add_argument("--photos", default="../shared/data/unlabelled_256")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--scale", type=float, default=1.0, help="short side of photos, in views")
    wanted = parser.parse_args()
    teacher, index = load_teacher(wanted.network), ImageIndex.load_or_list(wanted.photos)
    sys.stdout.write(f"| network | margin | ring explains | rings | gray |\n{'| --- ' * 5}|\n")
    for pixels in wanted.margins:
        patches = pixels // teacher.stride
        margin = Margin(patches=patches, pixels=pixels, surroundings=wanted.surroundings)
        explained, offsets = frame(over_photos(teacher, index, wanted, margin))
        rings = " / ".join(f"{offset:.3f}" for offset in offsets[:4])
        gray = " / ".join(f"{value:.3f}" for value in of_gray(teacher, wanted.resolution, margin))
        kind = f"{pixels} px {wanted.surroundings}" if pixels else "none"
        row = f"| {teacher.name} | {kind} | {explained:.1%} | {rings} | {gray} |\n"
        sys.stdout.write(row)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
