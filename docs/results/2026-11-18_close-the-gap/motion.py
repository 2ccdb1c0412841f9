"""How far cores move, and whether they end on objects more often than random points.

    python docs/results/2026-11-18_close-the-gap/motion.py MODEL [MODEL ...] [--budget 64]

Over the val photos of voc2012_animals: the mean distance from where a core starts to where it
stands in the last layer (the image is 2 wide), its standard deviation over photos (0: every photo
moves a core alike), and the share of end points that lie on an object (any class but background),
beside that of the points the cores start from and of uniformly random points. The interval is over
photos (bootstrap, 95 %), of the difference to random points.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import veca

RANDOM_POINTS = 4096
IGNORE_INDEX = 255


def on_object(mask: np.ndarray, points: np.ndarray) -> float:
    """Share of points, x then y within (-1, 1), on an object; ignored pixels do not count."""
    height, width = mask.shape
    columns = np.clip(((points[:, 0] + 1) / 2 * width).astype(int), 0, width - 1)
    rows = np.clip(((points[:, 1] + 1) / 2 * height).astype(int), 0, height - 1)
    found = mask[rows, columns]
    found = found[found != IGNORE_INDEX]
    return float((found > 0).mean()) if len(found) else float("nan")


@torch.inference_mode()
def measure(name: str, budget: int, data: Path) -> None:
    """Print one line for a model."""
    model = veca.load(name)
    draw = np.random.default_rng(0)
    random_points = draw.uniform(-1, 1, (RANDOM_POINTS, 2))
    moved, ends, rows = [], [], []
    for stem in (data / "val.txt").read_text().split():
        pixels = veca.preprocess(data / "images" / f"{stem}.jpg", size=256)
        mask = np.asarray(Image.open(data / "masks" / f"{stem}.png"))
        path = model.core_paths(pixels[None], budget)[:, 0].numpy()
        moved.append(np.linalg.norm(path[-1] - path[0], axis=-1))
        ends.append(path[-1])
        rows.append([on_object(mask, points) for points in (path[-1], path[0], random_points)])
    shares = np.array(rows)
    shares = shares[np.isfinite(shares).all(1)]  # photos whose every point is ignored do not count
    gain = shares[:, 0] - shares[:, 2]
    means = [draw.choice(gain, len(gain)).mean() for _ in range(5000)]
    low, high = np.percentile(means, (2.5, 97.5))
    print(
        f"| {name} | {budget} | {np.mean(moved):.3f} | {np.stack(ends).std(0).mean():.3f} | "
        f"{100 * shares[:, 0].mean():.1f} | {100 * shares[:, 1].mean():.1f} | "
        f"{100 * shares[:, 2].mean():.1f} | {100 * gain.mean():+.1f} [{100 * low:+.1f}, "
        f"{100 * high:+.1f}] |"
    )


def main() -> None:
    """Measure every model that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/segmentation/voc2012_animals")
    )
    given = parser.parse_args()
    print("| model | cores | moved | spread over photos | ends on objects, % | starts, % | "
          "random, % | ends less random |")  # fmt: skip
    print("| --- | --: | --: | --: | --: | --: | --: | --- |")
    for name in given.models:
        measure(name, given.budget, given.data)


if __name__ == "__main__":
    main()
