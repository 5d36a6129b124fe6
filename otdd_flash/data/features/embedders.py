"""What an embedder is, the ones that need no model, and how a short name becomes one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_device, check_fields, check_flag, shown
from otdd_flash.data.unembedded import TableDataset, TextDataset
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset

AnyDataset = LabeledDataset | TextDataset | TableDataset


@plain_torch_methods
@dataclass(frozen=True)
class Batching:
    """How data are fed to a model.

    Args:
        size: samples a batch.
        device: where the model runs; ``None`` leaves it where it is.
        progress: a bar on stderr; ``None`` shows it on terminals only.
    """

    size: int = 256
    device: str | torch.device | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self, check_count, "size")
        check_device("device", self.device)
        if self.progress is not None:
            check_flag("progress", self.progress)

    def run(self, n: int, step: Callable[[slice], Tensor], title: str) -> Tensor:
        """``step`` over slices of ``range(n)``, its rows joined on the CPU."""
        from tqdm import tqdm

        starts = range(0, n, self.size)
        hide = None if self.progress is None else not self.progress
        bar = tqdm(starts, desc=title, unit="batch", leave=False, disable=hide)
        return torch.cat([step(slice(start, start + self.size)).cpu() for start in bar])


class Embedder(ABC):
    """Maps a data set's samples to vectors.

    Attributes:
        name: for records and messages.
        key: content key of weights and preprocessing, ``None`` where there is none (then nothing is cached).
        texts: whether it takes texts instead of features.
        tables: whether it takes tables beside features.
        stored: whether its vectors are worth keeping on disk.
    """

    name: str
    key: str | None = None
    texts: bool = False
    tables: bool = False
    stored: bool = True

    def seen(self, *datasets: Any) -> Embedder:
        """The embedder told of data (their categories, say) that it will be given but not be fitted on."""
        return self

    def fitted(self, *datasets: Any) -> Embedder:
        """The embedder with what it learns from ``datasets`` together; itself where it learns nothing."""
        return self

    @abstractmethod
    def embed(self, dataset: Any, batching: Batching) -> Tensor:
        """``(n, k)`` vectors of the samples, in order."""


@plain_torch_methods
class Pca(Embedder):
    """Projection on the leading principal components of one data set, or of several with equal mass each.

    Args:
        n_components: how many.
        mean: ``(d,)`` float64, where it is fitted already.
        components: ``(k, d)`` float64 orthonormal rows, where it is fitted already.
    """

    stored = False

    def __init__(self, n_components: int, mean: Tensor | None = None, components: Tensor | None = None) -> None:
        n_components = check_count("n_components", n_components)
        self.n_components, self.mean, self.components = n_components, mean, components
        self.name = f"pca:{n_components}"
        if mean is not None and components is not None:
            self.key = content_key([("mean", mean), ("components", components)])

    def fitted(self, *datasets: Any) -> Pca:
        """The projection of ``datasets``, with their weights.

        Raises:
            ValueError: fewer samples or features than components, or widths that differ.
        """
        if len({dataset.d for dataset in datasets}) > 1:
            raise ValueError(f"pca is fitted on sets of one width, got {[dataset.d for dataset in datasets]} features")
        x = torch.cat([dataset.x.detach().double().cpu() for dataset in datasets])
        if self.n_components > min(x.shape):
            raise ValueError(
                f"pca:{self.n_components} needs at least as many samples and features, got {tuple(x.shape)}"
            )
        if len(datasets) == 1 and datasets[0].weights is None:
            decomposition = optional_import("sklearn.decomposition", needed_for="pca")
            fit = decomposition.PCA(self.n_components, random_state=0).fit(x.numpy())
            return Pca(self.n_components, torch.from_numpy(fit.mean_), torch.from_numpy(fit.components_))
        weights = torch.cat([dataset.normalised_weights.cpu() / len(datasets) for dataset in datasets])
        mean = weights @ x
        _, _, rows = torch.linalg.svd((x - mean) * weights.sqrt()[:, None], full_matrices=False)
        return Pca(self.n_components, mean, rows[: self.n_components].clone())

    def embed(self, dataset: LabeledDataset, batching: Batching) -> Tensor:
        """``(n, k)`` coordinates, in the features' dtype."""
        if self.mean is None or self.components is None:
            raise ValueError("pca is not fitted: use Features, or call fitted(dataset) first")
        if dataset.d != len(self.mean):
            raise ValueError(
                f"pca was fitted on {len(self.mean)} features, {dataset.name} has {dataset.d}: bring both to one width "
                "first, or give target_embedder= too, which projects each side on its own components"
            )
        mean, components = self.mean, self.components
        x = dataset.x.detach()

        def project(part: slice) -> Tensor:
            return ((x[part].double().cpu() - mean) @ components.T).to(x.dtype)

        return batching.run(len(x), project, self.name)


@plain_torch
def resolve_embedder(spec: Any, *, argument: str = "embedder") -> list[Embedder]:
    """Embedders of a short name, a model, a callable, a transformer, or a sequence of those, applied in turn.

    Names: ``raw`` (none), ``table`` (numbers and categories), ``pca:<k>``, ``torchvision:<model>``, ``timm:<model>``,
    ``sentence-transformers:<model or folder>``; and two that a package from PyPI brings, with no other download:
    ``sentence-transformers`` (all-MiniLM-L6-v2) and ``efficientnet-lite0``.

    Args:
        spec: any of these.
        argument: what errors call it.

    Raises:
        TypeError: something else.
        ValueError: a name that is none of these.
    """
    from otdd_flash.data.features.modules import ModuleEmbedder, timm_embedder, torchvision_embedder
    from otdd_flash.data.features.packaged import efficientnet_lite0_embedder, minilm_embedder
    from otdd_flash.data.features.sentences import SentenceEmbedder
    from otdd_flash.data.features.tables import TableEmbedder
    from otdd_flash.data.features.transformers import TransformerEmbedder, is_transformer

    if spec is None or (isinstance(spec, str) and spec == "raw"):
        return []
    if isinstance(spec, Embedder):
        return [spec]
    if isinstance(spec, list | tuple):
        return [embedder for part in spec for embedder in resolve_embedder(part, argument=argument)]
    if is_transformer(spec):
        return [TransformerEmbedder(spec)]
    if callable(spec):
        return [ModuleEmbedder(spec)]
    if not isinstance(spec, str):
        raise TypeError(f"{argument} must be a name, a torch module, a callable or a transformer, got {shown(spec)}")
    kind, _, rest = str(spec).partition(":")
    if spec == "table":
        return [TableEmbedder()]
    if kind == "pca" and rest.isdigit():
        return [Pca(int(rest))]
    makers: dict[str, Callable[[str], Embedder]] = {
        "torchvision": torchvision_embedder,
        "timm": timm_embedder,
        "sentence-transformers": SentenceEmbedder,
    }
    packaged: dict[str, Callable[[], Embedder]] = {
        "sentence-transformers": minilm_embedder,
        "efficientnet-lite0": efficientnet_lite0_embedder,
    }
    if spec in packaged:
        return [packaged[spec]()]
    if kind not in makers or not rest:
        raise ValueError(
            f"{argument}={spec!r} is not known: raw, table, pca:<k>, torchvision:<model>, timm:<model>, "
            "efficientnet-lite0, sentence-transformers[:<model or folder>], a torch module, a callable or a "
            "transformer of scikit-learn"
        )
    return [makers[kind](rest)]


def content_key(tensors: Iterable[tuple[str, Tensor]], *more: str) -> str:
    """32 hex digits over named tensors and strings."""
    digest = hashlib.blake2b(digest_size=16)
    for text in more:
        digest.update(text.encode() + b"\0")
    for name, tensor in tensors:
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
