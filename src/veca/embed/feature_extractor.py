"""`veca.FeatureExtractor`: image features as a step of a scikit-learn pipeline."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.backbone.model import VECA
from veca.data.images import Source
from veca.data.transforms import Fit
from veca.embed.encode import encode
from veca.weights.checkpoint import load_or_build

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError as error:
    raise ImportError(
        "veca.FeatureExtractor needs scikit-learn: pip install 'veca[probe]'"
    ) from error


class FeatureExtractor(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Pictures in, one feature of D numbers each out; nothing is fitted.

        make_pipeline(veca.FeatureExtractor(budget=16), LogisticRegression())

    Args:
        model: a model, or the name of one.
        budget: number of cores; by default that of the model.
        ffn: share of the hidden units.
        size: short side of the pictures in pixels.
        fit_mode: 'resize', 'crop' or 'pad', as in `veca.prepare`.
        batch_size: pictures that go through the model together, at most.
        device: of a model that is given by name.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - scikit-learn wants every setting as an argument
        self,
        model: VECA | str | os.PathLike[str] = "veca-tiny",
        budget: int | None = None,
        ffn: float | None = None,
        size: int = 256,
        fit_mode: Fit = "resize",
        batch_size: int = 8,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.budget = budget
        self.ffn = ffn
        self.size = size
        self.fit_mode = fit_mode
        self.batch_size = batch_size
        self.device = device

    def fit(self, images: Iterable[Source], labels: object = None) -> "FeatureExtractor":
        """Load the model; labels are ignored."""
        del images, labels
        self.model_ = (
            self.model
            if isinstance(self.model, VECA)
            else load_or_build(os.fspath(self.model), device=self.device).model
        )
        self.n_features_out_ = self.model_.config.width
        return self

    def transform(self, images: Iterable[Source]) -> NDArray[np.float32]:
        """Features (n, D) of pictures: paths, bytes, PIL images, arrays or tensors."""
        if not hasattr(self, "model_"):
            self.fit(())
        found = encode(
            self.model_, images, size=self.size, fit=self.fit_mode, budget=self.budget,
            ffn=self.ffn, batch_size=self.batch_size,
        )  # fmt: skip
        rows = [features.image.float().cpu().numpy() for features in found]
        return np.concatenate([np.empty((0, self.n_features_out_), np.float32), *rows])

    def get_feature_names_out(self, input_features: object = None) -> NDArray[Any]:
        """Names of the columns, for data frames."""
        del input_features
        return np.asarray([f"veca{number}" for number in range(self.n_features_out_)], object)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - a class of scikit-learn
        """Pictures are no table, and nothing has to be fitted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        tags.requires_fit = False
        return tags
