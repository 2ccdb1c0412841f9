"""The demo's page stands alone and says what it must."""

import html.parser
import re

import pytest
import torch
from PIL import Image

from veca.analysis.demo import BudgetRow, Demo, PhotoViews, Told, View, page


def view(budget: int) -> View:
    pixels = torch.zeros(2, 3, 4, dtype=torch.uint8)
    return View(budget, pixels[..., :3], pixels, pixels, "<svg></svg>")


DEMO = Demo(
    told=Told("a <model>", False, "a machine", "veca demo 'a<b>.png'"),
    pixels=(48, 32),
    precision="bf16",
    rows=[
        BudgetRow(4, 10.0, (9.0, 12.0), 1.5, 1234, 0.0157, 0.9, 0.8),
        BudgetRow(8, 20.0, (19.0, 22.0), 2.5, 5678, 0.0314, 1.0, 1.0),
    ],
    photos=[
        PhotoViews("<script>alert(1)</script>", Image.new("RGB", (48, 32)), [view(4), view(8)])
    ],
)


class Tags(html.parser.HTMLParser):
    """Checks that tags nest, and keeps their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_refers_to_nothing_outside() -> None:
    text = page(DEMO)
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    pictures = [attributes["src"] for tag, attributes in tags.seen if tag == "img"]
    assert len(pictures) == 6
    assert all(str(source).startswith("data:image/png;base64,") for source in pictures)
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert not re.search(r"url\((?!data:)", text)


def test_names_from_outside_are_text_and_never_markup() -> None:
    text = page(DEMO)
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "a &lt;model&gt;" in text
    assert "a&lt;b&gt;.png" in text


@pytest.mark.parametrize("trained", [False, True])
def test_untrained_weights_are_called_untrained(trained: bool) -> None:
    text = page(DEMO._replace(told=DEMO.told._replace(trained=trained)))
    assert ("These weights are untrained" in text) is not trained


def test_the_table_shows_each_budget_with_its_numbers() -> None:
    text = page(DEMO)
    for words in ("4 cores", "10 ms", "[9&ndash;12]", "1,234", "1.57%", "0.900", "5,678", "3.14%"):
        assert words in text
