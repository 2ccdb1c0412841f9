"""Settings are computed at the same time where that is known to be safe, with the same answers."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.data.pictures import small_model
from tests.probe.small_features import SETTINGS, CellModel
from veca.probe import features as at_once
from veca.probe.features import settings_at_once
from veca.probe.models import VecaModel
from veca.probe.rows import Setting


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(at_once, "usable_processors", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_answers_come_in_the_order_of_the_settings_and_the_dearest_is_begun_first() -> None:
    begun: list[Setting] = []

    def work(setting: Setting) -> str:
        begun.append(setting)
        return setting.label

    model = CellModel()
    model.facts = replace(model.facts, kind="teacher")  # one after the other
    with settings_at_once(model, 4, loaders=0) as several:
        assert several.each([*SETTINGS, Setting()], work) == ["c2", "c4-f0.5", "c8", "whole"]
        assert several.each([], work) == []
    assert begun == [SETTINGS[2], SETTINGS[1], SETTINGS[0], Setting()]


def test_two_settings_are_under_way_at_the_same_time_on_two_processors() -> None:
    both = threading.Barrier(2, timeout=20)
    with settings_at_once(CellModel(), 2, loaders=2) as several:
        several.each(SETTINGS[:2], lambda _: both.wait())  # one alone would wait for ever


@pytest.mark.parametrize(("num_settings", "loaders", "threads"), [(2, 0, 1), (1, 0, 2), (1, 1, 1)])
def test_each_setting_has_its_part_of_the_processors_that_loaders_leave(
    num_settings: int, loaders: int, threads: int
) -> None:
    with settings_at_once(CellModel(), num_settings, loaders) as several:
        found = several.each(SETTINGS[:num_settings], lambda _: torch.get_num_threads())
    assert found == [threads] * num_settings
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("facts", "device", "num_settings", "wanted"),
    [
        ({}, "cpu", 3, 2),
        ({}, "cpu", 1, 1),
        ({}, "cpu", 0, 1),
        ({}, "meta", 3, 1),
        ({"kind": "teacher"}, "cpu", 3, 1),
    ],
)
def test_only_our_own_models_on_a_cpu_are_computed_several_times_at_once(
    facts: dict[str, Any], device: str, num_settings: int, wanted: int
) -> None:
    model = CellModel()
    model.facts, model.device = replace(model.facts, **facts), torch.device(device)
    assert at_once._at_once(model, num_settings) == wanted


def test_what_fails_in_a_thread_fails_here() -> None:
    def work(setting: Setting) -> None:
        raise ValueError(f"{setting.label} fell ill")

    with (
        settings_at_once(CellModel(), 2, loaders=0) as several,
        pytest.raises(ValueError, match="c2 fell ill"),
    ):
        several.each(SETTINGS[:2], work)


def test_a_model_gives_the_same_bits_alone_and_beside_itself() -> None:
    model = VecaModel(small_model(), torch.device("cpu"), name="small", digest=None)
    images, settings = torch.randint(0, 256, (4, 3, 32, 32)).byte(), model.settings(None, None)
    torch.set_num_threads(1)
    wanted = [model.observe(images, setting) for setting in settings]
    torch.set_num_threads(2)
    with settings_at_once(model, 2, loaders=0) as several:
        for _ in range(20):
            found = several.each(settings, lambda setting: model.observe(images, setting))
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one.patches, other.patches)
                assert torch.equal(one.image, other.image)
