"""Transformers and pipelines of scikit-learn as embedders of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.data.features.embedders import Batching, Embedder
from otdd_flash.data.held import hold
from otdd_flash.data.matrix import as_tensor
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset


@plain_torch_methods
class TransformerEmbedder(Embedder):
    """A transformer or pipeline of scikit-learn, fitted already or to be fitted on the data.

    A fitted one is used as it is. Another is cloned, and the clone fitted: on one data set with its class ids as ``y``
    (which supervised transformers need and others ignore), on several with their rows together and without ``y``.

    Args:
        transformer: with ``fit`` and ``transform``.
        name: for records; default the class names of its steps.
    """

    stored = False

    def __init__(self, transformer: Any, *, name: str | None = None) -> None:
        self.transformer = transformer
        self.name = name or f"scikit-learn:{_steps(transformer)}"

    def fitted(self, *datasets: LabeledDataset) -> TransformerEmbedder:
        """Itself where it is fitted, else a fitted clone.

        Raises:
            ValueError: weighted data, which a general transformer cannot heed, or widths that differ.
        """
        if is_fitted(self.transformer):
            return self
        for dataset in datasets:
            if dataset.weights is not None:
                raise ValueError(
                    f"{dataset.name} has weights, which {self.name} would not heed: fit it yourself and pass it fitted"
                )
        widths = [dataset.d for dataset in datasets]
        if len(set(widths)) > 1:
            raise ValueError(f"{self.name} is fitted on sets of one width, got {widths} features")
        clone = optional_import("sklearn.base", needed_for=self.name).clone(self.transformer)
        x = torch.cat([dataset.x.detach().cpu() for dataset in datasets]).numpy()
        y = datasets[0].y.cpu().numpy() if len(datasets) == 1 else None
        return TransformerEmbedder(clone.fit(x, y), name=self.name)

    def embed(self, dataset: LabeledDataset, batching: Batching) -> Tensor:
        """``(n, k)`` outputs, float32 or float64.

        Raises:
            ValueError: a width that it was not fitted on, or an output with another number of rows.
        """
        expected = getattr(self.transformer, "n_features_in_", dataset.d)
        if expected != dataset.d:
            raise ValueError(
                f"{self.name} was fitted on {expected} features, {dataset.name} has {dataset.d}: give each side its "
                "own with embedder= and target_embedder=, both to one width"
            )
        rows = dataset.x.detach().cpu().numpy().copy()  # transformers may work in place (copy=False)
        return as_rows(self.transformer.transform(rows), dataset.n, self.name)


def is_transformer(value: Any) -> bool:
    """Whether a value is used as scikit-learn's transformers are."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("fit", "transform"))


def is_fitted(transformer: Any) -> bool:
    """Whether it has been fitted, as scikit-learn tells."""
    validation = optional_import("sklearn.utils.validation", needed_for="transformers of scikit-learn")
    exceptions = optional_import("sklearn.exceptions", needed_for="transformers of scikit-learn")
    try:
        validation.check_is_fitted(transformer)
    except exceptions.NotFittedError:
        return False
    return True


def as_rows(outputs: Any, n: int, name: str) -> Tensor:
    """What a transformer gave as an ``(n, k)`` float tensor; sparse rows are made dense.

    Raises:
        ValueError: another number of rows or axes.
    """
    held = hold(outputs)
    x = as_tensor(held.take(np.arange(held.shape[0]))) if held.shape else as_tensor(outputs)
    if x.ndim != 2 or len(x) != n or not x.shape[1]:
        raise ValueError(f"{name} must give ({n}, k), one row a sample and k >= 1, got shape {tuple(x.shape)}")
    return x if x.dtype in (torch.float32, torch.float64) else x.double()


def _steps(transformer: Any) -> str:
    """``StandardScaler+PCA`` of a pipeline, else the class name."""
    steps = [step for _, step in getattr(transformer, "steps", [])] or [transformer]
    return "+".join(type(step).__name__ for step in steps if step is not None)
