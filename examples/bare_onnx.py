"""An exported model in bare ONNX Runtime: no veca, no torch.

veca export onnx veca-tiny --out veca-tiny.onnx
python examples/bare_onnx.py veca-tiny.onnx holiday.jpg 16
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image


def main(file: str, photo: str, budget: str) -> None:
    """Print the shapes of the features of a photo."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["veca"])
    image = Image.open(photo).convert("RGB").resize((256, 256), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image, np.float32) / 255 - facts["mean"]) / facts["std"]
    pixels = pixels.transpose(2, 0, 1)[None].astype(np.float32)  # (1, 3, 256, 256)
    found = session.run(None, {"pixels": pixels, "budget": np.asarray(int(budget), np.int64)})
    for name, feature in zip(facts["outputs"], found, strict=True):
        print(name, feature.shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
