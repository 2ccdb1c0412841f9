"""The sets with masks or depth, by the names that users give."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from veca.data.labelled import LabelledSet
from veca.data.sets.ade20k import ade20k
from veca.data.sets.cityscapes import cityscapes
from veca.data.sets.coco import coco_object, coco_stuff
from veca.data.sets.context import context_59, context_60
from veca.data.sets.counts import Checker
from veca.data.sets.kitti import kitti
from veca.data.sets.nyu import nyu_v2, nyu_v2_labelled
from veca.data.sets.voc import voc2012, voc2012_aug

DENSE_SETS: Mapping[str, Callable[[Path, Checker], LabelledSet]] = MappingProxyType(
    {
        "voc2012": voc2012,
        "voc2012-aug": voc2012_aug,
        "pascal-context-60": context_60,
        "pascal-context-59": context_59,
        "ade20k": ade20k,
        "coco-stuff": coco_stuff,
        "coco-object": coco_object,
        "cityscapes": cityscapes,
        "nyu-v2": nyu_v2,
        "nyu-v2-labelled": nyu_v2_labelled,
        "kitti": kitti,
    }
)
"""Readers of the folder of a set; `Checker.finish` decides whether what they found will do."""
