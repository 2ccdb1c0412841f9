"""Pages for a browser."""

import re
from html.parser import HTMLParser

from PIL import Image

from veca.analysis.page import document, picture_url, table, text


class _Tags(HTMLParser):
    """Checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> None:
    """A page is whole, and refers to nothing outside."""
    tags = _Tags()
    tags.feed(text)
    assert not tags.open
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert not re.search(r"url\((?!data:)", text)


def test_a_page_fetches_nothing_runs_nothing_and_suits_light_and_dark() -> None:
    page = document("a <b> & c", "<p>words</p>", ".own { color: red; }").decode()
    assert "<title>a &lt;b&gt; &amp; c</title>" in page
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert page.index("prefers-color-scheme: dark") < page.index(".own {") < page.index("<body>")
    assert "http:" not in page
    assert "https:" not in page


def test_whatever_a_name_holds_is_text() -> None:
    assert text("<b a='x'>&\"") == "&lt;b a=&#x27;x&#x27;&gt;&amp;&quot;"
    assert text("cat\x1b[31m\u202edog\n") == "cat?[31m?dog?"
    assert text("b\udce9") == "b?"  # a file name that is not UTF-8
    assert text("Grüße, 猫 0.5") == "Grüße, 猫 0.5"


def test_a_table_has_a_head_and_a_line_for_each_row() -> None:
    assert table(["a", "b"], [["1", "2"]]) == (
        '<div class="scroll"><table>\n<tr><th>a</th><th>b</th></tr>\n'
        "<tr><td>1</td><td>2</td></tr>\n</table></div>"
    )


def test_a_large_picture_is_reduced_and_the_original_stays() -> None:
    picture = Image.effect_noise((900, 300), 60).convert("RGB")
    small, large = picture_url(picture, side=90), picture_url(picture)
    assert small.startswith("data:image/jpeg;base64,")
    assert len(small) < len(large) / 20
    assert picture.size == (900, 300)
    assert picture_url(picture, "PNG", 90).startswith("data:image/png;base64,")
