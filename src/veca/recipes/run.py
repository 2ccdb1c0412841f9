"""Running a recipe: what `veca distill` does after it has read its flags."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from veca.distill.config import DistillConfig
from veca.distill.run import Outcome, Wishes, distill
from veca.distill.student import fresh_backbone
from veca.recipes.distill import Recipe
from veca.recipes.judge import judge
from veca.recipes.quick_pictures import quick_pictures
from veca.runtime.files import replace_file
from veca.runtime.workers import is_first_worker
from veca.weights.checkpoint import load

QUICK_PICTURES, QUICK_VALIDATION = 1600, 128
"""Pictures to train and to validate on that `quick` makes where none are named."""

JUDGEMENT_NAME = "judgement.json"


def run_recipe(recipe: Recipe, out: Path, wishes: Wishes, tell: Callable[[str], None]) -> Outcome:
    """Train; `quick` brings its own pictures where none are named, and is judged at the end."""
    config, efficiency = recipe
    out = out.expanduser()
    quick = config.recipe == "quick"
    if quick and config.images is None:
        pictures = quick_pictures(out / "pictures", QUICK_PICTURES)
        others = quick_pictures(out / "other-pictures", QUICK_VALIDATION, part="validation")
        config = replace(config, images=str(pictures), validation=config.validation or str(others))
    if quick and wishes.cache_teacher is None:
        wishes = replace(wishes, cache_teacher=out / "teacher")
    outcome = distill(config, out, efficiency, wishes)
    if quick and outcome.finished and is_first_worker():
        for line in judged(config, out):
            tell(line)
    return outcome


def judged(config: DistillConfig, out: Path) -> list[str]:
    """Judge a student on labelled generated pictures beside its untrained self and raw pixels."""
    models = {"untrained": fresh_backbone(config).eval(), "trained": load(out / "last")}
    rows = judge(models, resolution=config.sizes[-1], seed=config.seed)
    replace_file(out / JUDGEMENT_NAME, [json.dumps(rows, indent=2).encode(), b"\n"])
    return [
        f"Nearest neighbour on generated pictures: {row['model']}"
        + ("" if row["budget"] is None else f" with {row['budget']} cores")
        + f" {row['accuracy']:.1f} %"
        for row in rows
    ]
