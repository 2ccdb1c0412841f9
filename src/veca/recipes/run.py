"""Running a recipe: what `veca distill` does after it has read its flags."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from veca.distill.config import DistillConfig
from veca.distill.run import Outcome, Wishes, distill
from veca.distill.run_folder import RunFolder
from veca.distill.student import fresh_backbone
from veca.recipes.distill import Recipe
from veca.recipes.judge import judge
from veca.recipes.quick_pictures import quick_pictures
from veca.runtime.distributed import is_main_process
from veca.runtime.files import read_jsonl, write_atomic
from veca.teacher.registry import load_teacher
from veca.weights.checkpoint import load

QUICK_PICTURES, QUICK_VALIDATION = 2800, 128
"""Pictures to train and to validate on that `quick` makes where none are named."""

JUDGMENT_NAME = "judgment.json"


def run_recipe(recipe: Recipe, out: Path, wishes: Wishes, tell: Callable[[str], None]) -> Outcome:
    """Train; `quick` brings its own pictures where none are named, and is judged at the end."""
    config, efficiency = recipe
    if config.recipe != "quick":
        return distill(config, out, efficiency, wishes)
    out = out.expanduser()
    if is_main_process():
        RunFolder(out).prepare(wishes.resume)
    if config.images is None:
        config = _with_pictures(config, out)
    teachers = [load_teacher(name) for name in config.teacher]
    if wishes.cache_teacher is None and config.cache.crops and all(t.digest for t in teachers):
        wishes = replace(wishes, cache_teacher=out / "teacher")
    outcome = distill(config, out, efficiency, wishes, teachers)
    if outcome.finished and not wishes.cache_only and is_main_process():
        for line in judged(config, out):
            tell(line)
    return outcome


def judged(config: DistillConfig, out: Path) -> list[str]:
    """Judge a student by the constant predictor, and by its neighbors on labeled pictures.

    Neighbors are those of its untrained self and of raw pixels too; judgment.json holds all.
    """
    models = {"untrained": fresh_backbone(config).eval(), "trained": load(out / "last")}
    rows = judge(models, resolution=config.sizes[-1], seed=config.seed)
    margins = _margins(out)
    facts = {"below_best_constant": margins, "nearest_neighbor": rows}
    write_atomic(out / JUDGMENT_NAME, [json.dumps(facts, indent=2).encode(), b"\n"])
    lines = [
        f"Validation loss below the constant predictor: {row['below']:.1f} %{_way(row)}"
        for row in margins
    ]
    said = "Nearest neighbor on generated pictures"
    return lines + [f"{said}: {row['accuracy']:.1f} % {row['model']}{_way(row)}" for row in rows]


def _with_pictures(config: DistillConfig, out: Path) -> DistillConfig:
    """Pictures to train and, from other photographs, to validate on."""
    pictures = quick_pictures(out / "pictures", QUICK_PICTURES)
    others = quick_pictures(out / "other-pictures", QUICK_VALIDATION, part="validation")
    return replace(config, images=str(pictures), validation=config.validation or str(others))


def _margins(out: Path) -> list[dict[str, Any]]:
    """How far the last validation losses lie below the best constant's, in per cent."""
    rows = list(read_jsonl(RunFolder(out).metrics))
    constant = next(row["loss"] for row in rows if row["kind"] == "baseline")
    scored = [row for row in rows if row["kind"] == "validation"]
    last = max(row["step"] for row in scored)
    # A resumed run may have scored a step twice; the last row of each kind counts.
    ways = {
        (row["budget"], row["ffn"], row["resolution"]): row for row in scored if row["step"] == last
    }
    return [
        {"budget": row["budget"], "ffn": row["ffn"], "below": 100 * (1 - row["loss"] / constant)}
        for row in ways.values()
        if row["loss"] is not None
    ]


def _way(row: Mapping[str, Any]) -> str:
    """How the student was run, in words."""
    cores = "" if row["budget"] is None else f" with {row['budget']} cores"
    return cores if row.get("ffn", 1.0) == 1 else f"{cores} at FFN {row['ffn']:g}"
