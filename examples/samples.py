"""Labeled pictures for the examples when you have none at hand: crops of scikit-image's photos."""

import random
from pathlib import Path

from PIL import Image

from veca.analysis.demo import sample_photos


def sample_classes(folder: Path, train: int = 12, val: int = 6, side: int = 160) -> Path:
    """Write `train/PHOTO/` and `val/PHOTO/`: crops of its left and of its right two thirds."""
    draw = random.Random(0)
    for photo in sample_photos():
        image = Image.open(photo).convert("RGB")
        third = image.width // 3
        for split, count, left in (("train", train, 0), ("val", val, third)):
            target = folder / split / photo.stem
            target.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                size = draw.randint(third, min(2 * third, image.height))
                x = left + draw.randint(0, 2 * third - size)
                y = draw.randint(0, image.height - size)
                crop = image.crop((x, y, x + size, y + size)).resize((side, side))
                crop.save(target / f"{number:02}.jpg")
    return folder
