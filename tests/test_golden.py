"""Golden numbers: what models, training, probes and collections give. Refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/test_golden.py` and say why in the commit.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import veca
from tests.data.pictures import write_pictures
from tests.distill.runs import ALONE, TINY, PixelTeacher, pictures, rows, run, small_config
from tests.distill.test_teacher_cache import CPU, opened, task_of
from tests.probe.fixtures import use_quick_protocols, write_classes, write_dense, write_model
from tests.weights.models import trained_model
from veca.backbone.config import SIZES
from veca.cli.main import main
from veca.data.listing import ImageIndex
from veca.distill.config import CacheConfig, KeptPrecision
from veca.embed.collection import Collection
from veca.probe.heads import load_head
from veca.probe.rows import TASKS
from veca.train.schedules import ScheduleConfig

FOLDER = Path(__file__).parent / "goldens"

PICKED = 7
"""Values of a fingerprint before its sums."""

Numbers = Mapping[str, Sequence[float]]


def fingerprint(values: Tensor | NDArray[Any]) -> list[float]:
    """A few values from all over an array, and two sums that any change moves."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    flat = array.astype(np.float64).ravel()
    picked = flat[np.arange(PICKED) * (len(flat) - 1) // (PICKED - 1)].tolist()
    return [*picked, float(np.abs(flat).sum()), float(np.square(flat).sum())]


def golden(name: str, found: Any) -> Any:
    """What is written down under a name, as JSON; it is renewed first if that is asked for."""
    file = FOLDER / f"{name}.json"
    if os.environ.get("VECA_WRITE_GOLDENS"):
        file.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(file.read_text())


def assert_unmoved(
    found: Numbers, written: Numbers, rel: float = 1e-5, loose: Mapping[str, float] | None = None
) -> None:
    """Same names in the same order, same numbers; fingerprints up to rounding of their values.

    Args:
        found: what the code computes now.
        written: what it computed before.
        rel: relative difference that is allowed.
        loose: others, for names that contain one of these words.
    """
    assert list(found) == list(written)
    for name, values in found.items():
        allowed = next((more for word, more in (loose or {}).items() if word in name), rel)
        # Single values near zero are differences of larger ones.
        scale = max(map(abs, written[name][:PICKED])) if len(values) == PICKED + 2 else 0.0
        assert values == pytest.approx(written[name], rel=allowed, abs=allowed * scale), name


def compute() -> dict[str, list[float]]:
    torch.manual_seed(0)
    model = veca.build("tiny", layers=4, local_kernel=0, ffn_shares=(0.25, 0.5, 1.0)).eval()
    images = torch.randn(2, 3, 64, 96)
    found = {}
    for budget, share in ((8, 1.0), (12, 0.5), (64, 1.0)):
        features = model(images, budget, share)
        for name in ("image", "cores", "patches", "core_points"):
            found[f"{name} at {budget} cores, share {share}"] = fingerprint(getattr(features, name))
    found["core maps"] = fingerprint(model.core_maps(images, 3, 8))
    # A fixed direction: the length of a normalized feature has no gradient but rounding errors.
    directions = torch.randn_like(features.image), torch.randn_like(features.patches)
    loss = (features.image * directions[0]).mean() + (features.patches * directions[1]).mean()
    loss.backward()
    for name in ("patch_embedding.weight", "core_bank.points.7", "core_steps.0.scale"):
        found[f"gradient of {name}"] = fingerprint(model.get_parameter(name).grad)  # type: ignore[arg-type]
    return found


def test_outputs_and_gradients_of_a_seeded_tiny_model_are_unmoved() -> None:
    found = compute()
    assert_unmoved(found, golden("tiny", found))


def test_two_runs_agree_bit_for_bit() -> None:
    assert compute() == compute()


FIELDS = ("loss", "loss_image", "loss_patch_cosine", "loss_patch_error", "gradient_norm")

# Orthogonalized steps amplify the rounding in which machines differ.
GENTLE = ScheduleConfig(peak=5e-4, minimum=5e-5, warmup_steps=2)


def losses(out: Path) -> dict[str, list[float]]:
    """The numbers of a run's log."""
    return {
        f"{row['kind']} {row.get('step', '')} {row.get('budget', '')} {row.get('ffn', '')}": [
            row[name] for name in FIELDS if name in row
        ]
        for row in rows(out)
    }


def test_five_steps_of_tiny_have_unmoved_losses(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images")
    backbone = dataclasses.replace(SIZES["tiny"], local_kernel=0, ffn_shares=(0.25, 0.5, 1.0))
    config = small_config(
        images, backbone=backbone, steps=5, validate_every=5, ema=0.99, schedule=GENTLE
    )
    run(config, tmp_path / "run", ALONE)
    found = losses(tmp_path / "run")
    assert_unmoved(found, golden("distill", found))


def test_five_steps_with_local_mixing_and_cached_outputs_have_unmoved_losses(
    tmp_path: Path,
) -> None:
    config = small_config(
        pictures(tmp_path / "images"),
        backbone=dataclasses.replace(TINY, local_kernel=3, core_motion="attention"),
        teacher_margin=16,
        teacher_surroundings="contextual",
        cache=CacheConfig(crops=2, dtype="float16"),
        steps=5,
        validate_every=5,
        ema=0.99,
        schedule=GENTLE,
    )
    run(config, tmp_path / "run", ALONE, cache_teacher=tmp_path / "kept")
    found = losses(tmp_path / "run")
    assert_unmoved(found, golden("distill_local", found))


def test_cached_teacher_outputs_are_unmoved(tmp_path: Path) -> None:
    index = ImageIndex.load_or_list(pictures(tmp_path / "images", 6))
    found = {}
    for dtype in get_args(KeptPrecision):
        cache = opened(
            tmp_path / dtype,
            index,
            [PixelTeacher()],
            CacheConfig(crops=2, dtype=dtype),
            teacher_margin=16,
            teacher_surroundings="contextual",
        )
        (kept,) = cache.lookup(task_of([0, 1, 3, 5], [0, 1, 1, 0]), CPU)
        found[f"image features as {dtype}"] = fingerprint(kept.image)
        found[f"patch features as {dtype}"] = fingerprint(kept.patches)
    # Another machine may round single values to the neighboring one, which moves the sums so far.
    assert_unmoved(found, golden("teacher_cache", found), rel=1e-4)


EMBED_FLAGS = [
    "--size", "32", "--budget", "3", "--patches", "--precision", "fp32", "--dtype", "float32",
    "--workers", "0", "--batch", "4", "--device", "cpu",
]  # fmt: skip


def embedded() -> tuple[list[str], dict[str, list[float]]]:
    """The listed names, and fingerprints of the features, by the real command."""
    assert main(["embed", "photos", "--model", "model", "--out", "out", *EMBED_FLAGS]) == 0
    collection = Collection.open("out")
    names = [str(Path(path).relative_to(Path.cwd())) for path in collection.paths]
    found = {}
    for name, row, feature in zip(names, collection.rows(), collection.features(), strict=True):
        patch_map = collection.patch_map(row.path)
        found[f"vector of {name}"] = fingerprint(feature)
        found[f"patch map of {name}"] = fingerprint(patch_map)
        sides = [float(side) for side in (row.width, row.height, *patch_map.shape[1:]) if side]
        found[f"sides of {name} and of its map"] = sides
    return names, found


def neighbors(image: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[float]]:
    """What a search finds: names in order, and their similarities."""
    capsys.readouterr()
    assert main(["search", image, "--in", "out", "--top", "6", "--json", "--device", "cpu"]) == 0
    answer: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["matches"]
    return (
        [str(Path(one["path"]).relative_to(Path.cwd())) for one in answer],
        [one["similarity"] for one in answer],
    )


def test_an_embedded_folder_and_a_search_in_it_are_unmoved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "photos", 12)
    write_pictures(tmp_path, 1, first=50)
    veca.save(trained_model(patch_size=16), tmp_path / "model")
    names, numbers = embedded()
    found: dict[str, Any] = {"names": names, "found": {}, "numbers": numbers}
    for image in ("photos/0004.png", "0050.png"):  # one of the folder, and another one
        found["found"][image], similarities = neighbors(image, capsys)
        numbers[f"similarities to {image}"] = similarities
    written = golden("embed", found)
    assert (found["names"], found["found"]) == (written["names"], written["found"])
    assert_unmoved(numbers, written["numbers"])


CLASSES, MASKS, DEPTH = "photos", "farm", "rooms"

JOBS = {
    "knn": (CLASSES, "dinov2"),
    "logistic": (CLASSES, "dinov2"),
    "linear": (CLASSES, "quick"),
    "dense-knn": (MASKS, "quick"),
    "segmentation": (MASKS, "quick"),
    "depth": (DEPTH, "quick"),
}
"""The set and the protocol of each task."""

PROBE_FLAGS = [
    "--model", "model", "--budgets", "2,6", "--resolution", "32", "--precision", "fp32",
    "--workers", "0", "--device", "cpu",
]  # fmt: skip

LOOSE = {
    "dense-knn head": 1e-3,  # kept in half precision, whose last bit rounding can flip
    "segmentation head": 2e-4,  # fitted to views kept in half precision, by AdamW, which makes
    "depth head": 1e-4,  # whole steps of small gradients, so that rounding grows with the steps
}
"""Entries that another machine may compute with more rounding; measured with weights moved by 1e-7:
at most 4e-5, and below 2e-6 in all others."""


def rows_of(task: str) -> list[dict[str, Any]]:
    """The rows of a report by the real command."""
    data, protocol = JOBS[task]
    words = ["probe", task, data, "--protocol", protocol, "--out", f"out-{task}", *PROBE_FLAGS]
    assert main(words) == 0
    found: list[dict[str, Any]] = json.loads(Path(f"out-{task}", "report.json").read_text("utf-8"))
    return found


def numbers_of(row: dict[str, Any]) -> list[float]:
    """The value of a row, its cost, and what was chosen for it."""
    chosen = [value for value in row["chosen"].values() if isinstance(value, int | float)]
    return [row["value"], row["gflops"], row["patches_per_core"], *chosen]


def heads_of(task: str) -> dict[str, list[float]]:
    """Fingerprints of the fitted heads, or of what neighbors are sought in."""
    heads = [load_head(folder) for folder in Path(f"out-{task}", "heads").iterdir()]
    return {
        f"{task} head at {head.setting.budget} cores, {name}": fingerprint(tensor)
        for head in sorted(heads, key=lambda head: head.setting.budget or 0)
        for name, tensor in sorted(head.tensors.items())
    }


def measured() -> dict[str, Any]:
    """The fields and numbers of all tasks, in the working directory."""
    found: dict[str, Any] = {"fields": {}, "numbers": {}}
    for task in JOBS:
        rows = rows_of(task)
        found["fields"][task] = sorted(set.intersection(*(set(row) for row in rows)))
        for row in rows:
            name = f"{task} at {row['budget']} cores, {row['metric']}"
            found["numbers"][name] = numbers_of(row)
        found["numbers"] |= heads_of(task)
    return found


@pytest.fixture
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and a set of each kind, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "veca.analysis.figures", None)  # slower than all else
    use_quick_protocols(monkeypatch)
    write_classes(tmp_path / CLASSES, train=12, val=9)
    for number in range(4):  # classes of several sizes, whose mean is not that of the images
        (tmp_path / CLASSES / "val" / "red" / f"{number}.png").unlink()
    write_dense(tmp_path / MASKS, "masks")
    write_dense(tmp_path / DEPTH, "depth")
    write_model(tmp_path / "model")


@pytest.mark.usefixtures("small_sets")
def test_the_numbers_of_every_probe_task_are_unmoved() -> None:
    assert set(JOBS) == set(TASKS)
    found = measured()
    written = golden("probe", found)
    for task, fields in written["fields"].items():
        assert set(fields) <= set(found["fields"][task]), task  # a report may gain fields
    assert_unmoved(found["numbers"], written["numbers"], loose=LOOSE)
