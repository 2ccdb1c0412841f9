"""What every page must keep, whatever it shows."""

import re
from html.parser import HTMLParser


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
