"""Train a small backbone of your own on unlabeled photos, taught by EfficientNet-Lite2.

    python examples/train.py photos --out runs/mine --steps 5000

Run it again to continue where it stopped. Without photos, crops of scikit-image's sample photos
are used, which show how training works but are too few to learn from.
"""

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from samples import sample_classes

import veca
from veca.distill.config import RunOptions
from veca.distill.run import distill
from veca.recipes.distill import tiny


def main(words: list[str] | None = None) -> None:
    """Train, then load the best model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("photos", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/mine"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=128)
    flags = parser.parse_args(words)
    photos = flags.photos or sample_classes(Path("build/samples"))

    logging.basicConfig(level="INFO", format="%(message)s")
    recipe, _ = tiny()
    config = replace(
        recipe,
        images=str(photos),
        steps=flags.steps,
        batch=flags.batch,
        resolution=flags.pixels,
        schedule=replace(recipe.schedule, warmup_steps=flags.steps // 10),
    )
    result = distill(config, flags.out, RunOptions(), resume=True)
    print(f"stopped at step {result.step} of {flags.steps}")

    model = veca.load(flags.out / "best")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {flags.out / 'best'}")


if __name__ == "__main__":
    main()
