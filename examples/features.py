"""Features of photos at several budgets, and a picture of them: similar colors, similar features.

    python examples/features.py holiday.jpg --budgets 8 16 64

Without a photo, three sample photos of scikit-image are used.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

import veca
from veca.analysis.demo import sample_photos
from veca.analysis.visualize import common_basis, pca_colors


def main(words: list[str] | None = None) -> None:
    """Encode the photos, print similarities, and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photos", nargs="*", type=Path)
    parser.add_argument("--model", default="veca-tiny")
    parser.add_argument("--budgets", nargs="+", type=int, default=[8, 16, 64])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--out", type=Path, default=Path("build/features.jpg"))
    flags = parser.parse_args(words)

    model = veca.load(flags.model)
    photos = flags.photos or sample_photos()[:3]
    side = 256
    sheet = Image.new("RGB", (side * (1 + len(flags.budgets)), side * len(photos)))
    for row, photo in enumerate(photos):
        pixels = veca.preprocess(photo, size=flags.size, fit="crop")
        with torch.inference_mode():
            found = [model(pixels[None], budget=budget) for budget in flags.budgets]
        for budget, features in zip(flags.budgets, found, strict=True):
            alike = F.cosine_similarity(features.image, found[-1].image).item()
            print(f"{photo.name}: {budget} cores, {alike:.3f} similar to {flags.budgets[-1]} cores")
        # One basis per photo, so that a color means the same at every budget; without the outermost
        # patches, in which features of veca-tiny partly encode the border of the picture.
        maps = [features.patch_map[0] for features in found]
        basis = common_basis([item[:, 2:-2, 2:-2] for item in maps])
        pictures = [center_square(Image.open(photo).convert("RGB"))]
        pictures += [Image.fromarray(pca_colors(item, basis).numpy()) for item in maps]
        for column, picture in enumerate(pictures):
            sheet.paste(picture.resize((side, side)), (column * side, row * side))
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(flags.out, quality=85)
    print(f"{flags.out}: each photo, and its features with {flags.budgets} cores")


def center_square(photo: Image.Image) -> Image.Image:
    """The part of a photo that fit='crop' shows the model."""
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    return photo.crop((left, top, left + side, top + side))


if __name__ == "__main__":
    main()
