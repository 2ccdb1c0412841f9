"""Embed a folder of images, and find those most similar to one of them.

    python examples/search.py photos holiday.jpg

Without a folder, crops of scikit-image's sample photos are searched.
"""

import argparse
from pathlib import Path

from samples import sample_classes

from veca.embed import Collection, EmbedConfig, embed_images, nearest, query_vector


def main(words: list[str] | None = None) -> None:
    """Embed, search, and print the matches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("image", nargs="?", type=Path)
    parser.add_argument("--model", default="veca-tiny")
    parser.add_argument("--out", type=Path, default=Path("build/embedded"))
    flags = parser.parse_args(words)
    folder = flags.folder or sample_classes(Path("build/samples"))
    image = flags.image or min(folder.rglob("*.jpg"))

    # Repeat it after adding photos: only new and changed ones are computed.
    summary = embed_images([folder], flags.model, flags.out, EmbedConfig(budget=16, size=160))
    print(f"{summary.images} images in {summary.folder}")

    collection = Collection.open(flags.out)
    query = query_vector(collection, image)
    for match in nearest(collection, query.feature, top=6):
        print(f"{match.similarity:.3f}  {match.image.path}")


if __name__ == "__main__":
    main()
