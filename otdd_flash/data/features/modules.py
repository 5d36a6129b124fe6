"""Torch modules and callables as embedders of features and pictures; models of torchvision and timm."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from otdd_flash.checks import check_count, check_fields, check_number, check_size, shown
from otdd_flash.data.features.embedders import Batching, Embedder, content_key
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch, plain_torch_methods
from otdd_flash.types import LabeledDataset


@plain_torch_methods
@dataclass(frozen=True)
class PicturePreprocess:
    """What a picture model wants: channels, size and normalisation of pictures in [0, 1].

    Args:
        size: ``(h, w)``, resized bilinearly with antialiasing; ``None`` leaves the size.
        mean: by channel, subtracted.
        std: by channel, divided by.
        channels: grey pictures are repeated to this number.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    channels: int = 3

    def __post_init__(self) -> None:
        check_fields(self, check_count, "channels")
        check_size("size", self.size)
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, tuple | list) or len(value) not in (1, self.channels):
                raise TypeError(f"{name} must be {self.channels} numbers, one a channel, got {shown(value)}")
            for number in value:
                check_number(name, number, low=-math.inf if name == "mean" else 0.0)

    def __call__(self, pictures: Tensor) -> Tensor:
        """``(b, c, h, w)`` pictures in [0, 1] to the model's input.

        Raises:
            ValueError: pictures that are neither grey nor of that many channels.
        """
        if pictures.shape[1] == 1:
            pictures = pictures.expand(-1, self.channels, -1, -1)
        if pictures.shape[1] != self.channels:
            raise ValueError(f"the model takes {self.channels} channels, the pictures have {pictures.shape[1]}")
        if self.size is not None and tuple(pictures.shape[2:]) != self.size:
            pictures = nn.functional.interpolate(pictures, size=self.size, mode="bilinear", antialias=True)
        shift, scale = (torch.tensor(v, dtype=pictures.dtype, device=pictures.device) for v in (self.mean, self.std))
        return (pictures - shift[:, None, None]) / scale[:, None, None]


@plain_torch_methods
class ModuleEmbedder(Embedder):
    """A torch module or callable from a batch to ``(b, k)`` (or more axes, which are flattened).

    Pictures arrive as ``(b, c, h, w)`` in [0, 1], other rows as ``(b, d)``. A module runs in evaluation mode, without
    gradients, and is left in the mode and on the device it was in.

    Args:
        module: what to call.
        preprocess: applied to a batch first, e.g. :class:`PicturePreprocess`.
        name: for records; default the class or function name.
        key: content key of a callable without weights of its own; a module's key is made from its weights.
    """

    def __init__(
        self,
        module: Callable[[Tensor], Any],
        *,
        preprocess: Callable[[Tensor], Tensor] | None = None,
        name: str | None = None,
        key: str | None = None,
    ) -> None:
        self.module, self.preprocess = module, preprocess
        self.name = str(name or getattr(module, "__name__", type(module).__name__))
        self.key = key
        if key is None and isinstance(module, nn.Module):
            about = describe(module)
            if about is not None and " at 0x" not in repr(preprocess):  # an address is no content
                self.key = content_key(module.state_dict().items(), about, repr(preprocess))

    def embed(self, dataset: LabeledDataset, batching: Batching) -> Tensor:
        """``(n, k)`` outputs.

        Raises:
            ValueError: an output that is not one tensor with a row a sample.
        """
        x, shape = dataset.x.detach(), dataset.image_shape
        if shape is not None:
            x = x.reshape(len(x), *((1, *shape) if len(shape) == 2 else shape))
        module = self.module
        if not isinstance(module, nn.Module):
            return batching.run(len(x), lambda part: self._outputs(x[part].to(batching.device or x.device)), self.name)
        home = next(iter(module.parameters()), x)
        device = torch.device(batching.device or home.device)
        dtype = home.dtype if home.is_floating_point() else x.dtype
        modes = {part: part.training for part in module.modules()}
        origin = home.device
        try:
            module.to(device).eval()
            with torch.no_grad():
                return batching.run(len(x), lambda part: self._outputs(x[part].to(device, dtype)), self.name)
        finally:
            module.to(origin)
            for part, training in modes.items():
                part.training = training

    def at_size(self, size: tuple[int, int]) -> ModuleEmbedder:
        """The model on pictures of ``(h, w)`` instead of its own size: fewer pixels cost less and tell less.

        Raises:
            ValueError: an embedder without :class:`PicturePreprocess`.
        """
        if not isinstance(self.preprocess, PicturePreprocess):
            raise ValueError(f"picture_size={size} is for models with a PicturePreprocess, {self.name} has none")
        preprocess, name = replace(self.preprocess, size=size), f"{self.name} at {size[0]} x {size[1]}"
        return ModuleEmbedder(self.module, preprocess=preprocess, name=name)

    def _outputs(self, batch: Tensor) -> Tensor:
        """Vectors of one batch."""
        out = self.module(batch if self.preprocess is None else self.preprocess(batch))
        if not isinstance(out, Tensor) or out.ndim < 1 or len(out) != len(batch):
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"embedder {self.name} must give one tensor with {len(batch)} rows, got {got}; wrap the model in a "
                "function that picks the output to compare"
            )
        out = out.detach().reshape(len(out), -1)
        return out if out.dtype in (torch.float32, torch.float64) else out.float()


@plain_torch
def torchvision_embedder(model: str, *, weights: str | None = "DEFAULT") -> ModuleEmbedder:
    """A torchvision classifier without its last layer, with the preprocessing of its weights (without cropping).

    Args:
        model: name as in ``torchvision.models.get_model``.
        weights: name of the pretrained weights; ``None`` for random ones.

    Raises:
        ValueError: an unknown model, or one whose last layer is not linear.
        FileNotFoundError: weights that are not in torch's cache and cannot be downloaded.
    """
    models = optional_import("torchvision.models", needed_for=f"embedder torchvision:{model}")
    try:
        entry = models.get_model_weights(model)
        chosen = None if weights is None else entry[weights]
    except (KeyError, ValueError) as error:
        raise ValueError(f"torchvision has no model {model!r} with weights {weights!r}: {error}") from error
    shown = sys.stderr.isatty()  # the bar of a download
    network = _fetched(lambda: models.get_model(model, weights=chosen, progress=shown), f"torchvision:{model}")
    meta = (chosen or entry["DEFAULT"]).transforms()
    size = _square(meta.crop_size)
    return ModuleEmbedder(
        _without_head(network, model),
        preprocess=PicturePreprocess(size, tuple(meta.mean), tuple(meta.std)),
        name=f"torchvision:{model}" + ("" if weights else " (random weights)"),
    )


@plain_torch
def timm_embedder(model: str, *, pretrained: bool = True) -> ModuleEmbedder:
    """A timm model without its classifier, with its own size and normalisation (without cropping).

    Args:
        model: name as in ``timm.create_model``.
        pretrained: ``False`` for random weights.

    Raises:
        FileNotFoundError: weights that are not cached and cannot be downloaded.
    """
    timm = optional_import("timm", needed_for=f"embedder timm:{model}", extra="vision")
    network = _fetched(lambda: timm.create_model(model, pretrained=pretrained, num_classes=0), f"timm:{model}")
    config = timm.data.resolve_data_config({}, model=network)
    channels, height, width = config["input_size"]
    return ModuleEmbedder(
        network,
        preprocess=PicturePreprocess((height, width), tuple(config["mean"]), tuple(config["std"]), channels),
        name=f"timm:{model}" + ("" if pretrained else " (random weights)"),
    )


def _fetched(make: Callable[[], nn.Module], name: str) -> nn.Module:
    """A model, or one line on why its weights could not be had."""
    try:
        return make()
    except OSError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(
            f"the weights of {name} are not cached and could not be downloaded ({reason}); put them into torch's "
            "cache, or pass a torch module with weights of your own as the embedder"
        ) from error


def _without_head(network: nn.Module, model: str) -> nn.Module:
    """The network with its last linear layer replaced by the identity."""
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision:{model} has no linear classifier to take off; pass a module that gives features")
    parent, _, last = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), last, nn.Identity())
    return network


def _square(size: int | Sequence[int]) -> tuple[int, int]:
    """``(h, w)`` of torchvision's crop size."""
    values = [size] if isinstance(size, int) else list(size)
    return int(values[0]), int(values[-1])


def describe(module: nn.Module) -> str | None:
    """What a module computes besides its weights: structure, plain attributes, and the source of its own classes.

    ``None`` where a class has no source to be read: its outputs are then never taken from the disk.
    """
    parts = [repr(module)]
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if k != "training" and isinstance(v, int | float | str | tuple)}
        parts.append(f"{name}: {type(part).__module__}.{type(part).__qualname__} {sorted(plain.items())!r}")
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__):
        if kind.__module__.partition(".")[0] not in ("torch", "torchvision", "timm"):
            try:
                parts.append(inspect.getsource(kind))
            except (OSError, TypeError):
                return None
    return "\n".join(parts)
