"""What the page shows is what the model computes, from bounded memory and one worker."""

import io
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import saved_model, write_pictures
from tests.explore.conftest import picture_file, small_explorer
from veca.analysis.visualize import core_colors, cosine_map
from veca.embed.embed import EmbedConfig, embed_images
from veca.explore.neighbors import Neighbors
from veca.explore.session import (
    Asked,
    BusyError,
    Explorer,
    MissingError,
    Recent,
    SupersededError,
    ViewKind,
    Worker,
    crop_box,
    samples,
)


def asked(
    explorer: Explorer, kind: ViewKind, layer: int = 2, budget: int = 3, **more: object
) -> Asked:
    picture = explorer.open(picture_file())
    setting = explorer.setting(48, budget, None)
    return Asked(kind, picture.name, setting, layer, **more)  # type: ignore[arg-type]


def pixels(data: bytes, size: int = 48) -> torch.Tensor:
    """What goes through the model, by the public function."""
    return veca.preprocess(data, size=size)[None]


def test_features_are_those_of_the_model(explorer: Explorer) -> None:
    picture = explorer.open(picture_file())
    for budget, layer in ((1, 0), (3, 1), (4, 2)):
        found = explorer.features(picture.name, explorer.setting(48, budget, 0.5), layer)
        with torch.inference_mode():
            (expected,) = explorer.model.intermediates(pixels(picture_file()), [layer], budget, 0.5)
        assert torch.equal(found.patches, expected.patches)
        assert torch.equal(found.cores, expected.cores)


def test_another_layer_view_or_patch_needs_no_further_pass(explorer: Explorer) -> None:
    explorer.view(asked(explorer, "colors"))
    before = explorer.num_passes
    for kind in ("colors", "cores", "core", "paths", "objects", "similarity"):
        for layer in range(3):
            explorer.view(asked(explorer, kind, layer))
    explorer.view(asked(explorer, "similarity", point=(30, 20)))
    assert explorer.num_passes == before
    explorer.view(asked(explorer, "cores", budget=2))
    assert explorer.num_passes == before + 1


def test_cores_segments_and_paths_are_those_of_the_model(explorer: Explorer) -> None:
    image, budget, layer = pixels(picture_file()), 3, 1
    with torch.inference_mode():
        core_maps = explorer.model.core_maps(image, layer, budget)[0]
        patch_maps = explorer.model.patch_maps(image, layer, budget)[0]
        paths = explorer.model.core_paths(image, budget)[: layer + 1, 0]
        starts = explorer.model.core_bank(1, 4)[1][0].tanh()
    colors = core_colors(starts)[:budget].numpy()

    objects = explorer.view(asked(explorer, "objects", layer))
    assert objects.labels is not None
    np.testing.assert_array_equal(objects.labels, patch_maps.argmax(0).numpy())
    np.testing.assert_array_equal(objects.pixels[..., :3], colors[objects.labels])

    cores = explorer.view(asked(explorer, "cores", layer))
    relative = core_maps / core_maps.mean(dim=(1, 2), keepdim=True)
    assert cores.labels is not None
    np.testing.assert_array_equal(cores.labels, relative.argmax(0).numpy())
    np.testing.assert_array_equal(cores.pixels[..., :3], colors[cores.labels])

    single = explorer.view(asked(explorer, "core", layer))
    rows = single.grid[0]
    assert single.pixels.shape[0] == budget * rows
    for core, core_map in enumerate(core_maps):
        clearest = single.pixels[core * rows : (core + 1) * rows, :, 3].argmin()
        assert core_map.flatten()[clearest] >= core_map.quantile(0.9)

    points = explorer.view(asked(explorer, "paths", layer)).points
    assert points is not None
    np.testing.assert_allclose(points, ((paths + 1) / 2).transpose(0, 1).numpy(), atol=1e-6)


def test_similarity_is_the_cosine_with_the_marked_patch_of_either_picture(
    explorer: Explorer,
) -> None:
    other = explorer.open(picture_file(50, 70, seed=1)).name
    with torch.inference_mode():
        here = explorer.model(pixels(picture_file()), 3)
        there = explorer.model(pixels(picture_file(50, 70, seed=1)), 3)
    expected = {
        None: here.patch_map[0, :, 1, 4],  # x=59, y=20 of a picture of 60 x 40 pixels
        other: there.patch_map[0, :, 1, 2],
    }
    for of, feature in expected.items():
        point = (59, 20) if of is None else (49, 30)
        found = explorer.view(asked(explorer, "similarity", point=point, of=of))
        assert found.cosine is not None
        np.testing.assert_allclose(
            found.cosine, cosine_map(here.patch_map[0], feature).numpy(), atol=1e-5
        )
    whole = explorer.view(asked(explorer, "similarity")).cosine
    assert whole is not None
    np.testing.assert_allclose(
        whole, cosine_map(here.patch_map[0], here.image[0]).numpy(), atol=1e-5
    )


def test_a_color_means_the_same_at_every_setting(explorer: Explorer) -> None:
    """Two settings with equal features have equal colors, however far the others are."""
    first = explorer.view(asked(explorer, "colors", budget=4)).pixels
    explorer.view(asked(explorer, "colors", budget=1))
    again = explorer.view(asked(explorer, "colors", budget=4)).pixels
    np.testing.assert_array_equal(first, again)
    other = explorer.open(picture_file(seed=5)).name
    shared = explorer.view(asked(explorer, "colors", budget=4, beside=other)).pixels
    assert not np.array_equal(first, shared)  # a basis of both pictures
    mirrored = Asked(
        "colors", other, explorer.setting(48, 4, None), 2, beside=asked(explorer, "colors").picture
    )
    explorer.view(mirrored)
    assert len(explorer._bases) == 2  # the pair shares one, whichever comes first


def test_memory_is_bounded_and_the_oldest_picture_goes_first(explorer: Explorer) -> None:
    one = explorer.open(picture_file()).num_bytes
    explorer.pictures.most_bytes = 3 * one + one // 2
    names = [explorer.open(picture_file(seed=seed)).name for seed in range(1, 6)]
    assert len(explorer.pictures) == 3
    assert explorer.pictures.num_bytes <= explorer.pictures.most_bytes
    assert explorer.picture(names[-3]).name == names[-3]
    with pytest.raises(MissingError, match="no longer in memory; open it again"):
        explorer.picture(names[0])


def test_the_newest_value_stays_even_if_it_is_too_large() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.put("small", 1, 6)
    recent.put("large", 2, 600)
    assert (recent.get("small"), recent.get("large"), recent.num_bytes) == (None, 2, 600)
    recent.put("large", 3, 4)
    assert (recent.get("large"), recent.num_bytes) == (3, 4)


def test_one_file_is_one_picture(explorer: Explorer) -> None:
    assert explorer.open(picture_file()) is explorer.open(picture_file())
    assert explorer.open(picture_file()).name != explorer.open(picture_file(seed=1)).name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "This picture cannot be read as one of the formats"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be read"),
        (picture_file()[:-400], "damaged or truncated"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(
    explorer: Explorer, data: bytes, message: str
) -> None:
    with pytest.raises(veca.ImageError, match=message):
        explorer.open(data)
    assert len(explorer.pictures) == 0


def test_a_huge_picture_is_refused_by_its_header(explorer: Explorer) -> None:
    buffer = io.BytesIO()
    Image.new("1", (8000, 6000)).save(buffer, "PNG")
    with pytest.raises(
        veca.ImageError,
        match=r"This picture has 8000 x 6000 pixels.*at most 40,000,000.*; shrink it\.$",
    ):
        explorer.open(buffer.getvalue())


def test_a_long_strip_is_refused_where_it_would_become_too_large(explorer: Explorer) -> None:
    strip = explorer.open(picture_file(3000, 3)).name
    with pytest.raises(veca.ImageError, match="would become"):
        explorer.view(Asked("colors", strip, explorer.setting(256, 2, None), 0))


def test_a_full_attention_model_shows_what_it_has() -> None:
    explorer = small_explorer("full")
    picture = explorer.open(picture_file()).name
    setting = explorer.setting(48, None, None)
    assert explorer.view(Asked("colors", picture, setting, 0)).pixels.shape == (3, 5, 3)
    assert explorer.view(Asked("similarity", picture, setting, 2)).cosine is not None
    assert explorer.cost(picture, setting)[1] is None
    with pytest.raises(ValueError, match="has no cores, so there is no view 'paths'"):
        explorer.view(Asked("paths", picture, setting, 0))


def test_cost_is_that_of_the_model_and_of_its_blocks_with_full_attention(
    explorer: Explorer,
) -> None:
    picture = explorer.open(picture_file()).name
    own, full = explorer.cost(picture, explorer.setting(48, 2, 0.5))
    assert own == explorer.model.cost(48, 80, 2, 0.5)
    tokens = 3 * 5 + 1
    assert full is not None
    assert full.pairs == tokens**2
    assert 0 < explorer.milliseconds(picture, explorer.setting(48, 2, 0.5), full=True) < 1e4


def test_the_sample_photographs_open(explorer: Explorer) -> None:
    assert list(samples()) == ["chelsea", "astronaut", "coffee", "motorcycle", "rocket"]
    assert explorer.open_sample("chelsea").decoded.sides == (300, 451)
    with pytest.raises(MissingError, match="no sample 'nobody'"):
        explorer.open_sample("nobody")


@pytest.mark.parametrize("point", [(0, 0), (59, 39), (30, 20), (5, 39)])
def test_the_crop_around_a_patch_lies_within_the_picture(point: tuple[int, int]) -> None:
    left, top, right, bottom = crop_box((40, 60), point)
    assert 0 <= left <= point[0] < right <= 60
    assert 0 <= top <= point[1] < bottom <= 40
    assert right - left == bottom - top == 13


def test_neighbors_are_the_nearest_of_the_collection(explorer: Explorer, tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 5)
    model = saved_model(tmp_path / "model")
    embed_images([tmp_path / "photos"], str(model), tmp_path / "embedded",
                 EmbedConfig(size=32, precision="fp32"), num_workers=0, device="cpu")  # fmt: skip
    paths[4].unlink()
    exported, explorer.collection = (Neighbors(tmp_path / "embedded") for _ in range(2))
    assert explorer.collection.model == str(model)
    exported.collection.meta.settings["runtime"] = "onnx"
    assert exported.model is None  # such a file has no layers to show
    picture = explorer.open(paths[1].read_bytes())
    found = explorer.neighbors(picture.name, None)
    assert found[0].path == str(paths[1])
    assert found[0].similarity == pytest.approx(1, abs=1e-3)
    assert {neighbor.path for neighbor in found} == set(map(str, paths))
    assert [bool(n.thumbnail) for n in found] == [n.path != str(paths[4]) for n in found]
    assert (
        explorer.open_neighbor(found[1].path).name
        == explorer.open(Path(found[1].path).read_bytes()).name
    )
    crop = explorer.neighbors(picture.name, (5, 5))
    assert [neighbor.similarity for neighbor in crop] != [neighbor.similarity for neighbor in found]
    for outside in (str(tmp_path / "model" / "config.json"), "photos/../../x", "", "/etc/passwd"):
        with pytest.raises(MissingError, match="no picture of this path"):
            explorer.open_neighbor(outside)


def test_without_a_collection_neighbors_say_how_to_get_one(explorer: Explorer) -> None:
    picture = explorer.open(picture_file()).name
    with pytest.raises(MissingError, match="start with veca explore --in EMBEDDED"):
        explorer.neighbors(picture, None)


@pytest.fixture
def busy() -> tuple[Worker, threading.Event]:
    """A worker that runs a job until the event is set."""
    worker, go = Worker(most_waiting=3), threading.Event()
    started = threading.Event()

    def block() -> None:
        started.set()
        go.wait(30)

    worker.submit(block)
    assert started.wait(10)
    return worker, go


def test_a_newer_job_of_a_client_replaces_one_that_waits_and_keeps_its_place(
    busy: tuple[Worker, threading.Event],
) -> None:
    worker, go = busy
    ran: list[str] = []

    def job(name: str) -> Future[None]:
        return worker.submit(lambda: ran.append(name), client=name[0])

    old, other, new = job("a1"), job("b1"), job("a2")
    go.set()
    new.result(10)
    other.result(10)
    with pytest.raises(SupersededError, match="newer request"):
        old.result(10)
    assert ran == ["a2", "b1"]


def test_a_full_queue_refuses_and_goes_on_afterwards(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    jobs = [worker.submit(partial(int, number)) for number in range(3)]
    with pytest.raises(BusyError, match="try again in a moment"):
        worker.submit(lambda: 3)
    go.set()
    assert [job.result(10) for job in jobs] == [0, 1, 2]
    assert worker.submit(lambda: 4).result(10) == 4


def test_a_failing_or_canceled_job_stops_nobody(busy: tuple[Worker, threading.Event]) -> None:
    worker, go = busy
    canceled = worker.submit(lambda: pytest.fail("it was canceled"))
    assert canceled.cancel()
    failing = worker.submit(lambda: 1 / 0)
    go.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    assert worker.submit(lambda: "fine").result(10) == "fine"
