"""Which patch features of EfficientNet-Lite2 know best what a patch shows, at its border too.

    python docs/results/2026-11-17_teacher-maps/compare.py SIDE TRAIN VAL

from the top of the repository: SIDE is the student's resolution, TRAIN and VAL how many pictures of
each part of voc2012_animals are used, centre squares, evenly drawn from the lists. A patch has the
class of most of its pixels. Ridge regression and 20 nearest neighbours among 12,000 patches are
fitted on the patches of TRAIN; mIoU over the seven classes is told for all patches of VAL, those
within a border of two patches (one at 128 px), and the others.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.teacher.efficientnet import EfficientNetTeacher, efficientnet_teacher

SET = Path("../shared/data/segmentation/voc2012_animals")
SCORED = (0, 8, 10, 12, 13, 15, 17)
CLASSES, IGNORE_INDEX, PATCH = 21, 255, 16
NEIGHBOURS, BANK, TEMPERATURE = 20, 12_000, 0.1


def read(name: str, side: int) -> tuple[Tensor, Tensor]:
    """The centre square of a picture at twice the side, and the classes of its patches."""
    picture = Image.open(next((SET / "images").glob(f"{name}.*"))).convert("RGB")
    mask = Image.open(SET / "masks" / f"{name}.png")
    cut = min(picture.size)
    left, top = (picture.width - cut) // 2, (picture.height - cut) // 2
    box = (left, top, left + cut, top + cut)
    shown = picture.crop(box).resize((2 * side, 2 * side), Image.Resampling.BICUBIC)
    classes = np.array(mask.crop(box).resize((side, side), Image.Resampling.NEAREST))
    count = side // PATCH
    cells = classes.reshape(count, PATCH, count, PATCH).swapaxes(1, 2).reshape(count**2, -1)
    counts = [np.bincount(cell[cell != IGNORE_INDEX], minlength=CLASSES) for cell in cells]
    labels = [int(one.argmax()) if one.sum() else IGNORE_INDEX for one in counts]
    return torch.from_numpy(np.array(shown)).permute(2, 0, 1), torch.tensor(labels)


def drawn(part: str, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Pictures of a part, and the classes of all their patches."""
    names = (SET / f"{part}.txt").read_text("utf-8").split()
    chosen = names[:: max(1, len(names) // count)][:count]
    pictures, labels = zip(*(read(name, side) for name in chosen), strict=True)
    return torch.stack(pictures), torch.stack(labels)


def seen(teacher: EfficientNetTeacher, pictures: Tensor, margin: int) -> Tensor:
    """Patch features; `margin` patches beyond each edge are filled by reflection and cut off."""
    width = margin * 2 * PATCH
    count = pictures.shape[-1] // (2 * PATCH) + 2 * margin
    found = []
    for picture in pictures.split(1):
        wide = F.pad(picture.float(), (width,) * 4, mode="reflect").to(torch.uint8)
        features = teacher(wide, (count, count)).patches.unflatten(1, (count, count))
        inner = slice(margin, count - margin)
        found.append(features[:, inner, inner].flatten(1, 2))
    return torch.cat(found)


def mean_iou(told: Tensor, truth: Tensor) -> float:
    """Percent, over the scored classes."""
    known = truth != IGNORE_INDEX
    told, truth = told[known], truth[known]
    ious = [
        ((told == one) & (truth == one)).sum() / ((told == one) | (truth == one)).sum().clamp(min=1)
        for one in SCORED
    ]
    return 100 * float(torch.stack(ious).mean())


def ridge(features: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Classes by a linear regression of one-hot labels on standardised channels."""
    centre, scale = features.mean(0), features.std(0) + 1e-6
    known, targets = (features - centre) / scale, F.one_hot(labels, CLASSES).float()
    width = known.shape[1]
    penalty = 1.5 * len(known) / width * torch.eye(width)
    weights = torch.linalg.solve(known.T @ known + penalty, known.T @ (targets - targets.mean(0)))
    return (((asked - centre) / scale) @ weights + targets.mean(0)).argmax(1)


def nearest(features: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Classes by votes of the nearest patches."""
    chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:BANK]
    centre, labels = features.mean(0), labels[chosen]
    bank = F.normalize(features[chosen] - centre, dim=1)
    told = []
    for some in F.normalize(asked - centre, dim=1).split(2048):
        closeness, who = (some @ bank.T).topk(NEIGHBOURS, dim=1)
        votes = torch.zeros(len(some), CLASSES)
        votes.scatter_add_(1, labels[who], (closeness / TEMPERATURE).exp())
        told.append(votes.argmax(1))
    return torch.cat(told)


def main(side: int, train: int, val: int) -> None:
    """Print a line for each kind of features."""
    torch.set_num_threads(1)
    pictures, labels = drawn("train", train, side)
    others, truth = drawn("val", val, side)
    count = side // PATCH
    edge = 1 if count <= 8 else 2
    border = torch.ones(count, count, dtype=torch.bool)
    border[edge:-edge, edge:-edge] = False
    border = border.flatten().repeat(len(others))
    known = (labels != IGNORE_INDEX).flatten()
    kinds = [("efficientnet-lite2@16+32", margin) for margin in (0, 1, 2)]
    for name, margin in [*kinds, ("efficientnet-lite2@16+32@16", 0)]:
        teacher = efficientnet_teacher(name)
        features = seen(teacher, pictures, margin).flatten(0, 1)[known]
        asked = seen(teacher, others, margin).flatten(0, 1)
        words = [f"{name}, margin {margin}:"]
        for fit in (ridge, nearest):
            told = fit(features, labels.flatten()[known], asked)
            parts = (slice(None), border, ~border)
            values = (mean_iou(told[part], truth.flatten()[part]) for part in parts)
            words.append(f"{fit.__name__} {' / '.join(f'{value:.1f}' for value in values)}")
        print(*words, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
