"""VECA in Hugging Face transformers: `import veca.transformers` registers it, nothing else does.

After that `AutoModel`, `AutoBackbone`, `AutoModelForImageClassification`, `AutoImageProcessor` and
pipelines open a model folder or a model on the hub, without remote code. The state dict has
veca's own names, so that `veca.load` reads what `save_pretrained` wrote.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from huggingface_hub import CommitOperationAdd, HfApi
from torch import Tensor, nn
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
)

from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.model import VECA, Features
from veca.data.transforms import IMAGENET, Fit, prepare
from veca.runtime.files import write_atomic
from veca.weights.card import (
    ModelInfo,
    Provenance,
    is_trained,
    model_card,
    provenance_from_json,
)
from veca.weights.format import (
    CARD_NAME,
    FORMAT,
    PREPROCESSOR_NAME,
    WEIGHTS_NAME,
    config_from_json,
    dtype_names,
    preprocessor_json,
    stored_fields,
    weights_hash,
)


class VecaConfig(BackboneConfigMixin, transformers.PreTrainedConfig):  # type: ignore[misc]
    """The `config.json` of a model folder, as transformers wants it."""

    model_type = "veca"

    backbone: dict[str, Any] | None = None
    """Fields of `veca.BackboneConfig`; tiny by default."""
    format: int = FORMAT
    provenance: dict[str, Any] | None = None
    budget: int | None = None
    """Cores of calls without a budget; None uses the model's default."""
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Derive what transformers and its heads look for."""
        kwargs.pop("weights_sha256", None)  # of weights that may be trained on from here
        if self.__dict__.get("dtype") in {"float16", torch.float16}:
            self.__dict__["dtype"] = "float32"  # computed in single precision, as by veca.load
        if self.backbone is None:
            self.backbone = stored_fields(SIZES["tiny"])
        config = self.veca_config
        self.hidden_size, self.num_hidden_layers = config.width, config.layers
        self.num_attention_heads, self.num_channels = config.heads, config.in_channels
        self.patch_size = config.patch_size
        self.stage_names = ["stem", *(f"stage{n}" for n in range(1, config.layers + 1))]
        self.set_output_features_output_indices(
            out_indices=kwargs.pop("out_indices", None),
            out_features=kwargs.pop("out_features", None),
        )
        super().__post_init__(**kwargs)

    @property
    def veca_config(self) -> BackboneConfig:
        """The configuration of the model inside."""
        return config_from_json(self.backbone, "config.json")


class VecaPreTrainedModel(transformers.PreTrainedModel):  # type: ignore[misc]
    """Loading and saving."""

    config_class = VecaConfig
    base_model_prefix = "veca"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ("Block",)
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        """Only of heads: VECA draws its own weights when it is built."""
        if module is getattr(self, "classifier", None):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with veca's model card and an image processor beside the weights."""
        push = kwargs.pop("push_to_hub", False)
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = Path(save_directory)
        write_atomic(folder / CARD_NAME, [self._card(folder).encode()])
        write_atomic(folder / PREPROCESSOR_NAME, [preprocessor_json(self.config.veca_config)])
        if push:
            self.push_to_hub(kwargs.get("repo_id", folder.name), token=kwargs.get("token"))

    def push_to_hub(
        self,
        repo_id: str,
        commit_message: str = "Upload model",
        **kwargs: Any,
    ) -> Any:
        """Upload model, configuration and card in one commit; transformers has its own card."""
        api = HfApi(token=kwargs.pop("token", None))
        repo = api.create_repo(repo_id, private=kwargs.pop("private", None), exist_ok=True).repo_id
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            files = [CommitOperationAdd(file.name, file) for file in Path(folder).iterdir()]
            return api.create_commit(repo, files, commit_message=commit_message, **kwargs)

    def _card(self, folder: Path) -> str:
        """What `veca.save` writes."""
        base = self if isinstance(self, VecaModel) else self.veca
        state, file = base.backbone_state(), folder / WEIGHTS_NAME
        known = self.config.provenance
        info = ModelInfo(
            config=self.config.veca_config,
            path=file,
            dtype=dtype_names(tensor.dtype for tensor in state.values()),
            file_bytes=file.stat().st_size if file.exists() else 0,
            digest=weights_hash(self.config.veca_config, state),
            untrained=not is_trained(state),
            provenance=Provenance() if known is None else provenance_from_json(known),
        )
        return model_card(info, None, None)


class VecaModel(VecaPreTrainedModel):
    """`last_hidden_state` is cores, then patches; `pooler_output` the first core."""

    def __init__(self, config: VecaConfig) -> None:
        super().__init__(config)
        model = VECA(config.veca_config)
        model.budget = config.budget
        # Its parts are registered under their own names, so that state dicts have veca's keys;
        # the model itself is kept past torch's registration.
        for name, part in model.named_children():
            self.add_module(name, part)
        object.__setattr__(self, "_model", model)
        self.post_init()

    @property
    def model(self) -> VECA:
        """The VECA inside."""
        self._model.training = self.training  # `train` reaches the parts only
        return self._model

    def backbone_state(self) -> dict[str, Tensor]:
        """The weights by veca's names."""
        return self.model.state_dict()

    def get_input_embeddings(self) -> nn.Module:
        """What embeds patches."""
        return self.model.patch_embedding

    def forward(
        self,
        pixel_values: Tensor,
        budget: int | None = None,
        ffn: float | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Encode images; `budget` and `ffn` as in `veca.VECA`."""
        model, hidden = self.model, None
        wanted = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        if wanted:  # the embedded tokens and those after every layer, as in transformers
            layers = range(model.config.layers)
            states = model.intermediates(pixel_values, layers, budget, ffn, norm=False)
            first = model.tokenize(pixel_values, model.chosen_budget(budget)).tokens
            hidden = (first, *(_tokens(state) for state in states))
            cores, patches = (model.final_norm(part) for part in states[-1][:2])
            features = states[-1]._replace(cores=cores, patches=patches)
        else:
            features = model(pixel_values, budget, ffn)
        output = BaseModelOutputWithPooling(
            last_hidden_state=_tokens(features), pooler_output=features.image, hidden_states=hidden
        )
        return output if return_dict is not False else output.to_tuple()


class VecaBackbone(BackboneMixin, VecaModel):  # type: ignore[misc]
    """Feature maps of layers, for the heads of transformers."""

    def __init__(self, config: VecaConfig) -> None:
        super().__init__(config)
        self.num_features = [config.hidden_size] * (config.num_hidden_layers + 1)

    def forward(  # type: ignore[override]  # as all backbones of transformers
        self,
        pixel_values: Tensor,
        budget: int | None = None,
        ffn: float | None = None,
        **_: Any,
    ) -> BackboneOutput:
        """Normalized maps (B, D, rows, columns) of `config.out_features`."""
        layers = [self.stage_names.index(name) - 1 for name in self.out_features]
        if min(layers) < 0:
            raise ValueError("the stem has no features; use stage1 or later in out_features.")
        found = self.model.intermediates(pixel_values, layers, budget, ffn)
        return BackboneOutput(feature_maps=tuple(item.patch_map.contiguous() for item in found))


class VecaForImageClassification(VecaPreTrainedModel):
    """A linear layer on the first core."""

    def __init__(self, config: VecaConfig) -> None:
        super().__init__(config)
        self.veca = VecaModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        budget: int | None = None,
        ffn: float | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        """Logits, and the loss if there are labels."""
        output = self.veca(pixel_values, budget, ffn, **kwargs)
        logits = self.classifier(output.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=output.hidden_states)


class VecaImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """`veca.preprocess` as an image processor; a centered square by default, so batches stack."""

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        size: int = 256,
        fit: Fit = "crop",
        patch_size: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.size, self.fit, self.patch_size = size, fit, patch_size
        self.image_mean, self.image_std = list(IMAGENET.mean), list(IMAGENET.std)

    def preprocess(
        self,
        images: Any,
        size: int | None = None,
        fit: Fit | None = None,
        return_tensors: str | None = "pt",
        **_: Any,
    ) -> BatchFeature:
        """Pictures of any kind and size, one or a list."""
        many = list(images) if isinstance(images, list | tuple) else [images]
        pixels = [
            prepare(one, size or self.size, fit or self.fit, patch_size=self.patch_size).pixels
            for one in many
        ]
        if len({item.shape for item in pixels}) > 1:
            raise ValueError(
                f"fit={fit or self.fit!r} gives pictures of different sizes, which do not stack; "
                "use fit='crop', or one picture at a time."
            )
        return BatchFeature({"pixel_values": torch.stack(pixels)}, tensor_type=return_tensors)


def _tokens(features: Features) -> Tensor:
    """Cores, then patches."""
    return torch.cat((features.cores, features.patches), dim=1)


def register() -> None:
    """Let the Auto classes of transformers open models of type 'veca'."""
    transformers.AutoConfig.register("veca", VecaConfig, exist_ok=True)
    transformers.AutoModel.register(VecaConfig, VecaModel, exist_ok=True)
    transformers.AutoBackbone.register(VecaConfig, VecaBackbone, exist_ok=True)
    transformers.AutoModelForImageClassification.register(
        VecaConfig, VecaForImageClassification, exist_ok=True
    )
    transformers.AutoImageProcessor.register(
        VecaConfig, slow_image_processor_class=VecaImageProcessor, exist_ok=True
    )
