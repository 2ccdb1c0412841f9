"""Tables in Markdown whose columns also line up in a terminal."""

from collections.abc import Iterator, Sequence


def markdown_table(
    titles: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1
) -> Iterator[str]:
    """The lines of a table; the first `words` columns are text, to the left, the rest numbers."""
    cells = [[_cell(text) for text in line] for line in (titles, *lines)]
    widths = [max(3, *(len(line[column]) for line in cells)) for column in range(len(titles))]
    rule = [
        "-" * width if column < words else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    for line in (cells[0], rule, *cells[1:]):
        padded = [
            text.ljust(width) if column < words else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield f"| {' | '.join(padded)} |"


def without_empty(
    titles: Sequence[str], lines: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """A table less the columns in which every line says '-'."""
    kept = [column for column in range(len(titles)) if any(line[column] != "-" for line in lines)]
    return [titles[column] for column in kept], [
        [line[column] for column in kept] for line in lines
    ]


def _cell(text: str) -> str:
    """Text that ends no cell and no line; names of models may be paths of any kind."""
    return " ".join(text.split()).replace("|", "\\|")
