"""VECA through transformers, scikit-learn and torch.hub, the real libraries."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import HfApi
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import veca
import veca.transformers
from veca.backbone.model import VECA

# The shape hook replaces the constructor that transformers makes for a configuration.
pytestmark = pytest.mark.compiled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    fields: Any = {"layers": 3, "width": 32, "heads": 2, "patch_size": 8, "budgets": (2, 4, 8)}
    model = veca.build("tiny", **fields, core_motion="attention", default_budget=4)
    place = tmp_path_factory.mktemp("stored")
    veca.save(model, place, dtype=torch.float16, provenance=veca.Provenance(teacher="a ViT"))
    return str(place)


@pytest.fixture(scope="module")
def model(folder: str) -> VECA:
    return veca.load(folder)


def pixels() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 32, 48)


def picture(color: str, width: int = 40) -> Image.Image:
    return Image.new("RGB", (width, 32), color)


def test_auto_model_gives_cores_then_patches_and_pools_the_first_core(
    folder: str, model: VECA
) -> None:
    opened = transformers.AutoModel.from_pretrained(folder)
    assert isinstance(opened, veca.transformers.VecaModel)
    assert not opened.training
    for budget in (None, 3):
        output, expected = opened(pixels(), budget=budget), model(pixels(), budget)
        tokens = torch.cat((expected.cores, expected.patches), dim=1)
        torch.testing.assert_close(output.last_hidden_state, tokens, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.pooler_output, expected.image, atol=1e-5, rtol=1e-5)
    output = opened(pixels(), output_hidden_states=True)
    layers = model.intermediates(pixels(), (0, 1, 2), norm=False)
    assert len(output.hidden_states) == 1 + 3
    for hidden, layer in zip(output.hidden_states[1:], layers, strict=True):
        torch.testing.assert_close(hidden[:, 4:], layer.patches, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.pooler_output, model(pixels()).image, atol=1e-5, rtol=1e-5)
    assert opened(pixels(), return_dict=False)[0].shape == (2, 4 + 24, 32)


def test_a_model_is_saved_by_transformers_and_read_by_both(
    folder: str, model: VECA, tmp_path: Path
) -> None:
    opened = transformers.AutoModel.from_pretrained(folder)
    opened.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path)
    for other in (again(pixels(), budget=8).pooler_output, veca.load(tmp_path)(pixels(), 8).image):
        torch.testing.assert_close(other, model(pixels(), 8).image, atol=1e-5, rtol=1e-5)
    assert "a ViT" in (tmp_path / "README.md").read_text()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert (type(processor).__name__, processor.patch_size) == ("VecaImageProcessor", 8)
    assert "untrained" in (tmp_path / "README.md").read_text()


def test_training_changes_the_model_that_runs(folder: str) -> None:
    opened = transformers.AutoModel.from_pretrained(folder).train()
    before = opened(pixels()).pooler_output
    before.sum().backward()
    torch.optim.SGD(opened.parameters(), lr=1.0).step()
    assert not torch.allclose(opened.eval()(pixels()).pooler_output, before, atol=1e-3)


def test_the_image_processor_prepares_like_veca(folder: str) -> None:
    processor = veca.transformers.VecaImageProcessor(size=32, patch_size=8)
    found = processor([picture("red", 90), np.zeros((50, 70, 3), np.uint8)])["pixel_values"]
    expected = veca.preprocess(picture("red", 90), 32, "crop", patch_size=8)
    assert found.shape == (2, 3, 32, 32)
    assert torch.equal(found[0], expected)
    assert isinstance(processor(picture("red"), return_tensors="np").pixel_values, np.ndarray)
    with pytest.raises(ValueError, match="do not stack"):
        processor([picture("red", 90), picture("red", 50)], fit="resize")


def test_the_pipeline_extracts_features(folder: str, model: VECA) -> None:
    pipeline = transformers.pipeline("image-feature-extraction", model=folder, pool=True)
    found = torch.tensor(pipeline(picture("green")))
    expected = model(veca.preprocess(picture("green"), 256, "crop", patch_size=8)[None]).image
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_backbone_gives_maps_of_the_layers_that_a_head_asks_for(folder: str, model: VECA) -> None:
    backbone = veca.transformers.VecaBackbone.from_pretrained(folder, out_indices=[1, 3])
    maps = backbone(pixels(), budget=8).feature_maps
    expected = model.intermediates(pixels(), (0, 2), 8)
    for mine, theirs in zip(maps, expected, strict=True):
        torch.testing.assert_close(mine, theirs.patch_map, atol=1e-5, rtol=1e-5)
    assert (backbone.channels, backbone.out_features) == ([32, 32], ["stage1", "stage3"])
    config = transformers.AutoConfig.from_pretrained(folder)
    auto = transformers.AutoBackbone.from_config(config)
    assert isinstance(auto, veca.transformers.VecaBackbone)


def test_a_classifier_is_trained_saved_and_read(folder: str, tmp_path: Path) -> None:
    auto = transformers.AutoModelForImageClassification
    classifier = auto.from_pretrained(folder, num_labels=3)
    labels = torch.tensor([0, 2])
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        output = classifier(pixels(), labels=labels)
        losses.append(output.loss.item())
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert losses[0] == pytest.approx(np.log(3), rel=1e-5)
    assert losses[-1] < losses[0] / 2
    classifier.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path)
    torch.testing.assert_close(again(pixels()).logits, classifier.eval()(pixels()).logits)


def test_a_push_to_the_hub_is_one_commit_with_model_config_and_card(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[list[str]] = []

    def commit(_: object, repo: str, operations: Any, **__: object) -> str:
        assert repo == "me/veca"
        commits.append(sorted(operation.path_in_repo for operation in operations))
        return "done"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="me/veca"))
    monkeypatch.setattr(HfApi, "create_commit", commit)
    assert transformers.AutoModel.from_pretrained(folder).push_to_hub("me/veca") == "done"
    assert commits == [
        ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    ]


def test_the_block_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    picture("red", 48).save("holiday.jpg")
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text("utf-8")
    block = guide.split("tests/export/test_doors.py runs it -->\n```python\n")[1].split("```")[0]
    exec(block, {})
    assert capsys.readouterr().out == "torch.Size([1, 272, 192]) torch.Size([1, 192])\n"


def test_transformers_knows_veca_only_once_asked() -> None:
    code = (
        "import veca, transformers; veca.load;"
        "assert 'veca' not in transformers.models.auto.configuration_auto.CONFIG_MAPPING;"
        "import veca.transformers;"
        "assert 'veca' in transformers.models.auto.configuration_auto.CONFIG_MAPPING"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_extractor_is_a_step_of_a_scikit_learn_pipeline(model: VECA) -> None:
    extractor = veca.FeatureExtractor(model, budget=3, size=32)
    pictures = [picture(color, width) for color in ("red", "blue") for width in range(32, 56, 4)]
    features = clone(extractor).fit_transform(pictures)
    assert (features.shape, features.dtype) == ((12, 32), np.float32)
    one = model(veca.preprocess(pictures[5], 32, patch_size=8)[None], 3).image
    torch.testing.assert_close(torch.tensor(features[5:6]), one.detach(), atol=1e-5, rtol=1e-5)
    labels = [color for color in ("red", "blue") for _ in range(6)]
    pipeline = make_pipeline(extractor, LogisticRegression())
    column = np.empty(len(pictures), object)
    column[:] = pictures
    scores = cross_val_score(pipeline, column, labels, cv=3)
    assert scores.min() == 1.0
    assert list(extractor.fit(()).get_feature_names_out()[:2]) == ["veca0", "veca1"]


def test_an_extractor_by_name_loads_the_model_itself(folder: str, model: VECA) -> None:
    extractor = veca.FeatureExtractor(folder, size=32)
    found = extractor.transform([picture("red")])
    expected = model(veca.preprocess(picture("red"), 32, patch_size=8)[None]).image
    torch.testing.assert_close(torch.tensor(found), expected.detach(), atol=1e-5, rtol=1e-5)
    assert extractor.transform([]).shape == (0, 32)
    with pytest.raises(ValueError, match="one picture"):
        extractor.transform(np.zeros((32, 32, 3), np.uint8))


def test_torch_hub_opens_a_clone(folder: str) -> None:
    hub: Any = torch.hub.load
    opened = hub(str(ROOT), "veca_tiny", source="local")
    stored = veca.load("veca-tiny")
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(opened.parameters(), stored.parameters(), strict=True)
    )
    assert hub(str(ROOT), "load", folder, source="local").config.width == 32
    assert (
        hub(str(ROOT), "veca_tiny", pretrained=False, layers=1, source="local").config.layers == 1
    )
