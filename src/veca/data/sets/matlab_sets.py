"""Sets whose makers list pictures in MATLAB files: Stanford Cars and Flowers-102."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.images import reason
from veca.data.sets.dataset import DatasetChecks, DatasetError, LabeledDataset, Split, SplitBuilder

CARS_TEST_LABELS = "cars_test_annos_withlabels.mat"

FLOWERS = (
    "pink primrose", "hard-leaved pocket orchid", "canterbury bells", "sweet pea",
    "english marigold", "tiger lily", "moon orchid", "bird of paradise", "monkshood",
    "globe thistle", "snapdragon", "colt's foot", "king protea", "spear thistle", "yellow iris",
    "globe-flower", "purple coneflower", "peruvian lily", "balloon flower",
    "giant white arum lily", "fire lily", "pincushion flower", "fritillary", "red ginger",
    "grape hyacinth", "corn poppy", "prince of wales feathers", "stemless gentian", "artichoke",
    "sweet william", "carnation", "garden phlox", "love in the mist", "mexican aster",
    "alpine sea holly", "ruby-lipped cattleya", "cape flower", "great masterwort", "siam tulip",
    "lenten rose", "barbeton daisy", "daffodil", "sword lily", "poinsettia", "bolero deep blue",
    "wallflower", "marigold", "buttercup", "oxeye daisy", "common dandelion", "petunia",
    "wild pansy", "primula", "sunflower", "pelargonium", "bishop of llandaff", "gaura",
    "geranium", "orange dahlia", "pink-yellow dahlia", "cautleya spicata", "japanese anemone",
    "black-eyed susan", "silverbush", "californian poppy", "osteospermum", "spring crocus",
    "bearded iris", "windflower", "tree poppy", "gazania", "azalea", "water lily", "rose",
    "thorn apple", "morning glory", "passion flower", "lotus", "toad lily", "anthurium",
    "frangipani", "clematis", "hibiscus", "columbine", "desert-rose", "tree mallow", "magnolia",
    "cyclamen", "watercress", "canna lily", "hippeastrum", "bee balm", "ball moss", "foxglove",
    "bougainvillea", "camellia", "mallow", "mexican petunia", "bromelia", "blanket flower",
    "trumpet creeper", "blackberry lily",
)  # fmt: skip
"""Names by number, from the makers' page: the files hold numbers alone."""


def stanford_cars(folder: Path, checker: DatasetChecks) -> LabeledDataset:
    """`devkit/`, `cars_train/` and `cars_test/`; classes are counted from 1.

    The labels of the test pictures are in `cars_test_annos_withlabels.mat`, which came later and
    lies beside the devkit or in it; `cars_test_annos.mat` has none.
    """
    needed = ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train", "cars_test")
    root = checker.find(folder, needed, ("stanford_cars",))
    homes = (root, root / "devkit")
    listed = [home / CARS_TEST_LABELS for home in homes if (home / CARS_TEST_LABELS).exists()]
    checker.require(*(listed or [root / CARS_TEST_LABELS])[:1])
    names = read_matlab(root / "devkit/cars_meta.mat", "class_names")
    classes = tuple(str(name) for name in np.ravel(names))
    train = _cars_split("train", root, root / "devkit/cars_train_annos.mat", classes, checker)
    test = _cars_split("test", root, listed[0], classes, checker)
    checker.expect("classes", len(classes), 196)
    checker.expect("train pictures", len(train), 8_144)
    checker.expect("test pictures", len(test), 8_041)
    return LabeledDataset(
        name=checker.name, kind="classes", classes=classes, train=train, test=test
    )


def flowers_102(folder: Path, checker: DatasetChecks) -> LabeledDataset:
    """`imagelabels.mat`, `setid.mat` and `jpg/image_00001.jpg` ...; classes are counted from 1.

    The test part is the large one (`tstid`); some works train on it instead.
    """
    root = checker.find(folder, ("jpg", "imagelabels.mat", "setid.mat"), ("flowers-102",))
    labels = np.ravel(read_matlab(root / "imagelabels.mat", "labels")).astype(np.int64) - 1
    train = _flowers_split("train", "trnid", root, labels, checker)
    val = _flowers_split("val", "valid", root, labels, checker)
    test = _flowers_split("test", "tstid", root, labels, checker)
    checker.expect("classes", len(np.unique(labels)), len(FLOWERS))
    checker.expect("pictures", len(labels), 8_189)
    checker.expect("train pictures", len(train), 1_020)
    checker.expect("val pictures", len(val), 1_020)
    checker.expect("test pictures", len(test), 6_149)
    for split in (train, val):
        each = f"{split.name} pictures of a class"
        checker.expect_each(each, np.asarray(split.labels), len(FLOWERS), 10)
    return LabeledDataset(
        name=checker.name,
        kind="classes",
        classes=FLOWERS,
        train=train,
        val=val,
        test=test,
        per_class=True,
    )


def read_matlab(path: Path, variable: str) -> NDArray[Any]:
    """A variable of a MATLAB file, without the axes of length one that it puts everywhere."""
    try:
        from scipy.io import loadmat  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DatasetError(
            f"{path} is a MATLAB file, which needs scipy; run `pip install veca[probe]`."
        ) from error
    try:
        found = loadmat(path, variable_names=[variable], squeeze_me=True)[variable]
    except Exception as error:  # such files are damaged in many ways
        raise DatasetError(
            f"{path} has no {variable} that can be read ({reason(error)}); get it again."
        ) from error
    return np.atleast_1d(found)


def _cars_split(
    part: str, root: Path, listed: Path, classes: tuple[str, ...], checker: DatasetChecks
) -> Split:
    """A part by its list of records, of which file name and class count."""
    records = read_matlab(listed, "annotations")
    fields = records.dtype.names or ()
    if not {"fname", "class"} <= set(fields):
        raise DatasetError(
            f"{listed} has no classes, only {', '.join(fields)}; get the one with them."
        )
    builder = SplitBuilder(part, root)
    for record in records:
        try:
            label = int(record["class"]) - 1
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"{listed} has {record['class']!r} as the class of {record['fname']}, where a "
                "whole number belongs; get it again."
            ) from error
        builder.add(f"cars_{part}/{record['fname']}", label)
    return builder.split(len(classes), checker)


def _flowers_split(
    part: str, variable: str, root: Path, labels: NDArray[np.int64], checker: DatasetChecks
) -> Split:
    """A part by its list of picture numbers, counted from 1."""
    numbers: Iterable[int] = np.ravel(read_matlab(root / "setid.mat", variable)).tolist()
    builder = SplitBuilder(part, root)
    for number in numbers:
        if not 1 <= number <= len(labels):
            raise DatasetError(
                f"{root / 'setid.mat'} has picture {number}, but imagelabels.mat has "
                f"{len(labels):,} labels; get both again."
            )
        builder.add(f"jpg/image_{number:05d}.jpg", int(labels[number - 1]))
    return builder.split(len(FLOWERS), checker)
