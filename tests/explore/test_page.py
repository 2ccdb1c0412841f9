"""The page in a real browser."""

import io
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from tests.data.pictures import encoded, saved_model, write_pictures
from tests.explore.conftest import served
from veca.embed.embed import EmbedConfig, embed_images
from veca.explore import server
from veca.explore.neighbors import Neighbors
from veca.explore.session import Explorer
from veca.weights.checkpoint import load_or_build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: `apt-get install chromium`"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pictures(tmp_path_factory.mktemp("photos"), 5)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, photos: list[Path]) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("collection")
    model, config = saved_model(folder / "model"), EmbedConfig(size=32, precision="fp32")
    embed_images([photos[0].parent], str(model), folder / "embedded", config, num_workers=0,
                 device="cpu")  # fmt: skip
    explorer = Explorer(load_or_build("veca-tiny"), Neighbors(folder / "embedded"))
    with pytest.MonkeyPatch.context() as patch, served(explorer) as port:
        patch.setattr(server, "MAX_UPLOAD", 1_000_000)
        yield f"http://127.0.0.1:{port}/"


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Open]:
    """Opens pages; at the end none of them may have complained or left this machine."""
    complaints: list[str] = []
    contexts = []

    def watch(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            complaints.append(f"request to {request.url}")

    def complain(message: Any) -> None:
        # The browser logs every answer that is an error; the page says it in words.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def visit(state: str = "", width: int = 1280, height: int = 800, **more: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", watch)
        small = "" if "size=" in state else "size=128&size2=128&"
        page.goto(f"{address}#{small}{state}")
        page.wait_for_selector("body[data-ready]")
        settled(page)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


def settled(page: Page) -> None:
    """Wait until every panel shows what was asked for last."""
    page.wait_for_timeout(50)  # a change is asked for in the next frame
    expect(page.locator("#stage")).not_to_have_attribute("aria-busy", "true")
    for panel in page.locator(".pane").all():
        expect(panel).not_to_have_attribute("aria-busy", "true", timeout=20_000)


class Seen:
    """What a canvas looks like; equal up to what a fraction of a pixel in its place changes."""

    def __init__(self, canvas: Locator) -> None:
        with Image.open(io.BytesIO(canvas.screenshot())) as picture:
            self.small = np.asarray(picture.convert("RGB").resize((32, 32)), dtype=float)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and bool(abs(self.small - other.small).mean() < 1.5)

    def __hash__(self) -> int:
        return 0  # what is nearly equal has no better one


def seen(page: Page, number: int = 0) -> Seen:
    """What the view of a panel looks like."""
    return Seen(page.locator(".map canvas").nth(number))


class Waiting:
    """Requests that are held back until a test lets them go."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def hold(self, route: Route) -> None:
        """Keep a request."""
        self.routes.append(route)


def slider(page: Page, name: str, number: int = 0) -> Locator:
    return page.locator(f".{name} input").nth(number)


def choose(page: Page, text: str) -> None:
    """Pick a view or a comparison by its label."""
    page.get_by_text(text, exact=True).click()
    settled(page)


def test_the_page_opens_with_a_sample_its_features_and_its_cost(visit: Open) -> None:
    page = visit()
    expect(page.locator("#model")).to_contain_text("veca-tiny (size tiny), 5.5 M parameters")
    expect(page.locator("#samples button")).to_have_count(5)
    expect(page.locator("#samples button").first).to_have_attribute("aria-pressed", "true")
    assert Seen(page.locator(".photo canvas")) != seen(page)
    expect(page.locator(".size output")).to_have_text("128 px, 12 x 8 patches")
    expect(page.locator(".cost .pairs td").nth(1)).to_have_text("9,409")
    expect(page.locator(".cost .ms td").first).to_have_text(re.compile(r"^[\d.]+ ms$"))
    expect(page.locator(".cost .ms td").nth(2)).to_have_text(re.compile(r"^[\d.]+x$"))


def test_every_view_shows_something_else_and_says_what(visit: Open) -> None:
    page, pictures, words = visit(), list[Seen](), set()
    for name in ("Features", "All cores", "One core", "Paths", "Objects", "Similarity"):
        choose(page, name)
        assert all(seen(page) != picture for picture in pictures)
        pictures.append(seen(page))
        words.add(page.locator("#explained").inner_text())
        assert f"view={page.locator('[name=view]:checked').input_value()}" in page.url
    assert len(words) == 6


@pytest.mark.parametrize("name", ["budget", "ffn", "size", "layer"])
def test_a_slider_changes_the_picture_and_comes_back(visit: Open, name: str) -> None:
    page = visit()
    before, value = seen(page), slider(page, name).input_value()
    slider(page, name).fill("0" if name != "size" else "256")
    settled(page)
    assert seen(page) != before
    slider(page, name).fill(value)
    settled(page)
    assert seen(page) == before


def test_the_old_picture_stays_until_the_new_one_is_there(visit: Open) -> None:
    page, waiting = visit(), Waiting()
    before = seen(page)
    page.route("**/view?*", waiting.hold)
    slider(page, "budget").press("Home")
    page.wait_for_timeout(100)
    assert len(waiting.routes) == 1
    assert seen(page) == before
    waiting.routes[0].continue_()
    settled(page)
    assert seen(page) != before


def test_no_older_answer_overtakes_a_newer_one(visit: Open) -> None:
    page, waiting = visit(), Waiting()
    expected = seen(visit("budget=64"))
    page.route("**/view?*", waiting.hold)
    for count, key in enumerate(("Home", "End"), start=1):
        slider(page, "budget").press(key)
        page.wait_for_timeout(100)
        assert len(waiting.routes) == count
    waiting.routes[1].continue_()  # the newer one is answered first
    settled(page)
    assert seen(page) == expected
    waiting.routes[0].continue_()
    page.wait_for_timeout(300)
    assert seen(page) == expected


def test_a_clicked_patch_is_compared_with_all_others(visit: Open) -> None:
    page = visit("view=similarity")
    before = seen(page)
    page.locator(".photo canvas").click(position={"x": 100, "y": 80})
    settled(page)
    assert seen(page) != before
    assert re.search(r"point=0%2C\d+%2C\d+", page.url)
    expect(page.locator(".readout")).to_contain_text("cosine 1.00")
    page.locator(".map").press("Escape")
    settled(page)
    assert "point" not in page.url


def test_pointing_at_a_patch_shows_its_core_and_a_click_keeps_it(visit: Open) -> None:
    page = visit("view=core")
    first = seen(page)
    page.locator(".map canvas").hover(position={"x": 300, "y": 60})
    expect(page.locator(".readout")).to_have_text(
        re.compile(r"patch in row \d+, column \d+ · core \d+")
    )
    assert seen(page) != first
    page.locator(".map canvas").click(position={"x": 300, "y": 60})
    core = re.search(r"core=(\d+)", page.url)
    page.mouse.move(1, 1)
    expect(page.locator(".readout")).to_have_text(f"core {core and core[1]}")


def test_a_good_file_opens_and_a_bad_one_is_explained(visit: Open) -> None:
    page = visit()
    before = seen(page)
    file = {"name": "<img src=x onerror=alert(1)>.png", "mimeType": "image/png"}
    page.set_input_files("#file", {**file, "buffer": encoded(3, (200, 100))})
    expect(page.locator(".size output")).to_have_text("128 px, 16 x 8 patches")
    settled(page)
    good = seen(page)
    assert good != before
    page.set_input_files("#file", {**file, "buffer": encoded(4)[:200]})
    expect(page.locator("#problem")).to_contain_text("This picture cannot be decoded")
    assert seen(page) == good
    slider(page, "budget").press("End")
    settled(page)
    assert seen(page) != good
    page.set_input_files("#file", {**file, "buffer": b"\0" * 1_000_001})
    expect(page.locator("#problem")).to_contain_text("at most 1 MB are accepted")
    page.locator("#samples button").first.click()
    expect(page.locator("#problem")).to_be_hidden()


def test_everything_can_be_done_with_the_keyboard(visit: Open) -> None:
    page = visit()

    def to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        pytest.fail(f"Tab does not reach {selector}")

    to("#samples button:nth-child(2)")
    page.keyboard.press("Enter")
    settled(page)
    to("#file")
    to("[name=view]")
    page.keyboard.press("ArrowRight")
    to("[name=mode]")
    to("#opacity")
    to(".map")
    settled(page)
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#said")).to_contain_text("Marked: patch in row 6, column 6 · core")
    to(".budget input")
    page.keyboard.press("Home")
    to(".layer input")
    page.keyboard.press("ArrowLeft")
    settled(page)
    for part in ("picture=sample%3Aastronaut", "view=cores", "budget=1&", "layer=10", "point=0%2C"):
        assert part in page.url


def test_two_settings_stand_side_by_side(visit: Open) -> None:
    page = visit()
    choose(page, "Two settings")
    expect(page.locator(".pane .name")).to_have_text(
        ["16 cores, 128 px, layer 12", "64 cores, 128 px, layer 12"]
    )
    assert seen(page, 0) != seen(page, 1)
    slider(page, "budget", 1).fill("16")
    settled(page)
    assert seen(page, 0) == seen(page, 1)


def test_a_patch_of_one_picture_is_found_in_the_other(visit: Open) -> None:
    page = visit("mode=pictures&view=similarity&picture=sample:chelsea&picture2=sample:astronaut")
    before = seen(page, 1)
    page.locator(".map canvas").first.click(position={"x": 200, "y": 150})
    settled(page)
    assert seen(page, 1) != before
    expect(page.locator(".readout").nth(1)).to_contain_text("most similar patch (ring): cosine 0.")
    page.locator("#samples button").nth(2).click()  # opens on the right
    settled(page)
    assert "picture2=sample%3Acoffee" in page.url


def test_a_link_restores_the_view(visit: Open) -> None:
    page = visit("mode=settings&view=objects&budget=5&budget2=33&layer=7&picture=sample:rocket")
    page.locator(".map canvas").first.click(position={"x": 90, "y": 90})
    slider(page, "ffn", 1).press("ArrowLeft")
    slider(page, "size", 1).press("ArrowRight")
    settled(page)
    assert "size2=160" in page.url
    again = visit(page.url.partition("#")[2])
    page.mouse.move(1, 1)
    assert again.url == page.url
    for number in (0, 1):
        assert seen(again, number) == seen(page, number)
        for name in ("budget", "ffn", "size", "layer"):
            value = slider(page, name, number).input_value()
            expect(slider(again, name, number)).to_have_value(value)


def test_a_link_to_a_picture_that_is_gone_says_so_and_keeps_the_settings(visit: Open) -> None:
    page = visit("picture=aaaaaaaaaaaaaaaaaaaa&budget=7&view=paths")
    expect(page.locator("#problem")).to_have_text(
        "This picture is no longer in memory; open it again."
    )
    assert "picture=aaaaaaaaaaaaaaaaaaaa" in page.url
    page.locator("#samples button").first.click()
    settled(page)
    expect(page.locator("#problem")).to_be_hidden()
    expect(slider(page, "budget")).to_have_value("7")


def test_a_server_that_is_gone_or_busy_is_reported_in_place(visit: Open) -> None:
    page = visit()
    before = seen(page)
    page.route("**/view?*", lambda route: route.abort())
    slider(page, "budget").press("Home")
    problem = page.locator(".pane .problem")
    expect(problem).to_have_text("The server does not answer. Is veca explore still running?")
    assert seen(page) == before
    page.unroute("**/view?*")
    busy = {"status": 503, "json": {"detail": "Too many requests are waiting."}}
    page.route("**/view?*", lambda route: route.fulfill(**busy), times=1)
    slider(page, "budget").press("End")
    expect(problem).to_have_text("Too many requests are waiting.")
    expect(problem).to_be_hidden(timeout=10_000)  # it asks again by itself
    assert seen(page) != before


def test_the_view_is_saved_as_png(visit: Open) -> None:
    page = visit("mode=settings")
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "veca-colors.png"
    with Image.open(download.value.path()) as picture:
        assert picture.format == "PNG"
        assert picture.width > 2 * 1120
        assert len(picture.convert("RGB").getcolors(2**24) or ()) > 1000


def test_nearest_pictures_of_the_collection_open_with_a_click(
    visit: Open, photos: list[Path]
) -> None:
    page = visit()
    page.set_input_files("#file", photos[2])
    expect(page.locator("#neighbors h2")).to_have_text("Nearest in embedded")
    hits = page.locator("#near-picture .hits button")
    expect(hits).to_have_count(5)
    expect(hits.first).to_have_text("1.000")
    expect(hits.first.locator("img")).to_have_attribute("alt", f"Open {photos[2].name}")
    settled(page)
    page.locator(".map canvas").click(position={"x": 10, "y": 10})
    expect(page.locator("#near-crop .hits button")).to_have_count(5)
    before = seen(page)
    hits.nth(1).click()
    expect(page.locator("#near-crop .hits")).to_have_count(0)
    settled(page)
    assert seen(page) != before
    assert "picture=near%3A" in page.url


def brightness(page: Page) -> int:
    """Of the empty upper right corner."""
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        pixel = np.asarray(picture.convert("RGB"))[4, picture.width // 2]
        return int(pixel.sum(dtype=int))


def test_the_page_is_light_or_dark_as_the_system_is(visit: Open) -> None:
    assert brightness(visit(color_scheme="light")) > 700
    assert brightness(visit(color_scheme="dark")) < 150


LOOKS = [
    ("", 1280, "light"), ("", 380, "dark"), ("mode=pictures&view=similarity", 1280, "dark"),
    ("mode=settings&view=objects", 380, "light"), ("picture=aaaaaaaaaaaaaaaaaaaa", 1280, "light"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "width", "scheme"), LOOKS)
def test_nothing_is_inaccessible_or_wider_than_the_window(
    visit: Open, state: str, width: int, scheme: str
) -> None:
    # What looks into the page needs eval, which the policy of the page forbids.
    page = visit(state, width, color_scheme=scheme, bypass_csp=True)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations] == []


def test_the_api_page_is_accessible(visit: Open, address: str) -> None:
    page = visit(bypass_csp=True)
    page.goto(f"{address}api")
    expect(page.locator("h2").first).to_have_text("GET /api/model")
    violations = Axe().run(page).response["violations"]
    assert [one["id"] for one in violations if one["impact"] in {"serious", "critical"}] == []
