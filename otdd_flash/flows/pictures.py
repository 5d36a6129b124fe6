"""Pictures of a flow: samples by class as an image grid, points in the plane, and their animation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides
from otdd_flash.canvas import new_figure
from otdd_flash.checks import check_count, check_fields, check_path, check_tensor, check_text
from otdd_flash.errors import optional_import, warn
from otdd_flash.flows.callbacks import Callback
from otdd_flash.flows.state import FlowState
from otdd_flash.tensor_files import replacing
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.flows.flow import Flow

_GAP = 2  # pixels between pictures
_GREY = 96
_ROWS = 4096  # points projected at a time
_LAST = 8  # times as long as the others the last frame of an animation is shown


@dataclass(eq=False)
class ImageGrid(Callback):
    """``folder/images_00010.png``: a row a class of the start, the same samples in every frame.

    Args:
        folder: where to.
        every: steps between frames; the start and the end are always drawn.
        columns: samples a class.
        scale: screen pixels a picture's pixel.
    """

    folder: str | os.PathLike[str]
    every: int = 5
    columns: int = 10
    scale: int = 2
    _rows: list[list[int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        for name in ("every", "columns", "scale"):
            check_fields(self, check_count, name)
        check_path("folder", self.folder)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Choose the samples and draw the start."""
        if state.data.image_shape is None:
            raise ValueError(f"{state.data.name!r} holds no pictures: its image_shape is None")
        if not self._rows:
            y = state.data.y
            self._rows = [(y == c).nonzero()[: self.columns, 0].tolist() for c in range(state.data.num_classes)]
        self(flow, state)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Draw where it is time."""
        if state.step % self.every == 0:
            self._draw(state)

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Draw the end."""
        self._draw(state)

    def _draw(self, state: FlowState) -> None:
        shape = state.data.image_shape
        assert shape is not None
        image = image_grid(state.variables["x"], self._rows, shape, scale=self.scale)
        _save(image, Path(self.folder) / f"images_{state.step:05d}.png")


@dataclass(eq=False)
class Scatter(Callback):
    """``folder/scatter_00010.png``: flowing points, coloured by class, over those of the target.

    Args:
        target: where the flow goes.
        folder: where to.
        every: steps between frames; the start and the end are always drawn.
        axes: ``(d, 2)`` projection onto the picture; ``None`` takes the features themselves where there are two, else
            the main axes of start and target together.
    """

    target: LabeledDataset
    folder: str | os.PathLike[str]
    every: int = 5
    axes: Tensor | None = None
    _limits: tuple[list[float], list[float]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_sides(target=self.target)
        check_path("folder", self.folder)
        check_fields(self, check_count, "every")
        if self.axes is not None:
            check_tensor("axes", self.axes, shapes=[(self.target.d, 2)])

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Choose the axes and draw the start."""
        clouds = state.data.x, self.target.x
        if self.axes is None:
            self.axes = _main_axes(*clouds)
        seen = torch.cat([_projected(x, self.axes) for x in clouds])
        margin = 0.05 * (seen.amax(0) - seen.amin(0))
        self._limits = (seen.amin(0) - margin).tolist(), (seen.amax(0) + margin).tolist()
        self(flow, state)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Draw where it is time."""
        if state.step % self.every == 0:
            self._draw(flow, state)

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Draw the end."""
        self._draw(flow, state)

    def _draw(self, flow: Flow, state: FlowState) -> None:
        assert self.axes is not None
        assert self._limits is not None
        figure = new_figure(6, 6, needed_for="scatter pictures", layout="tight")
        axes = figure.add_subplot()
        now = flow.dataset(state)
        for data, marker, alpha in ((self.target, "x", 0.35), (now, "o", 0.8)):
            points = _projected(data.x, self.axes).cpu()
            axes.scatter(
                points[:, 0],
                points[:, 1],
                c=data.y.cpu(),
                cmap="tab10",
                vmin=0,
                vmax=9,
                s=14,
                marker=marker,
                alpha=alpha,
            )
        low, high = self._limits
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), title=f"step {state.step}, value {state.at.value:.4g}")
        path = Path(self.folder) / f"scatter_{state.step:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)


@dataclass(eq=False)
class Animation(Callback):
    """All frames ``folder/<pattern>`` in one file, made at the end; list it after what draws the frames.

    Args:
        path: ``.gif``, or ``.mp4`` (H.264; needs the extra ``flows``).
        folder: of the frames.
        pattern: of their names, which sort by step.
        milliseconds: a frame is shown; the last one eight times as long.

    Frames of a flow that ran in the same folder before are not joined.
    """

    path: str | os.PathLike[str]
    folder: str | os.PathLike[str]
    pattern: str = "images_*.png"
    milliseconds: int = 250
    _older: dict[Path, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_path("path", self.path)
        if Path(self.path).suffix not in (".gif", ".mp4"):
            raise ValueError(f"path of an animation must end in .gif or .mp4, got {os.fspath(self.path)!r}")
        check_path("folder", self.folder)
        check_text("pattern", self.pattern)
        check_fields(self, check_count, "milliseconds")

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """Look for what the end will need: not after hours that it is missing."""
        optional_import("PIL.Image", needed_for="an animation", extra="plots")
        if Path(self.path).suffix == ".mp4":
            _video_library()
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder: name a file for the animation")
        later = [frame for frame in Path(self.folder).glob(self.pattern) if _step_of(frame) > state.step]
        self._older = {frame: frame.stat().st_mtime_ns for frame in later}

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Join the frames."""
        images = optional_import("PIL.Image", needed_for="an animation", extra="plots")
        found = sorted(Path(self.folder).glob(self.pattern))
        own = [path for path in found if path.stat().st_mtime_ns != self._older.get(path)]
        frames = [images.open(path).convert("RGB") for path in own]
        if not frames:
            raise ValueError(f"no frames {self.pattern} in {self.folder}: list Animation after what draws them")
        sizes = sorted({frame.size for frame in frames})
        if len(sizes) > 1:
            raise ValueError(
                f"frames {self.pattern} in {self.folder} have the sizes {sizes}: give each flow its folder"
            )
        path = Path(self.path)
        if path.suffix == ".mp4":
            _save_video(path, [*frames, *[frames[-1]] * (_LAST - 1)], 1000 / self.milliseconds)
            return
        durations = [self.milliseconds] * (len(frames) - 1) + [_LAST * self.milliseconds]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


@dataclass(eq=False)
class Tolerated(Callback):
    """Drawing that must not end the flow: where it fails it is told once and given up.

    Args:
        drawing: any callback.
    """

    drawing: Callback
    _failed: bool = field(default=False, repr=False)

    def start(self, flow: Flow, state: FlowState, steps: int) -> None:
        """What fails before the first step is an error."""
        self.drawing.start(flow, state, steps)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Draw."""
        self._tried(lambda: self.drawing(flow, state))

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Draw the end."""
        self._tried(lambda: self.drawing.finish(flow, state))

    def _tried(self, draw: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            draw()
        except Exception as error:  # whatever a library makes of a full disk or a font
            self._failed = True
            name = type(self.drawing).__name__
            warn(f"{name} is given up, the flow goes on: {error or type(error).__name__}")


def _step_of(frame: Path) -> int:
    """The step in a frame's name; -1 for none."""
    digits = re.findall(r"\d+", frame.stem)
    return int(digits[-1]) if digits else -1


def image_grid(x: Tensor, rows: list[list[int]], shape: tuple[int, ...], *, scale: int = 2) -> Any:
    """Pictures ``x[rows[r][c]]`` as one pillow image; features in ``[0, 1]``, others are cut.

    Args:
        x: ``(n, d)`` flattened pictures.
        rows: indices, row by row.
        shape: ``(h, w)`` or ``(c, h, w)``; with other than 1 or 3 channels the mean of them is shown.
        scale: screen pixels a picture's pixel.
    """
    images = optional_import("PIL.Image", needed_for="image grids", extra="plots")
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    across = max(len(row) for row in rows)
    canvas = torch.full((len(rows) * (height + _GAP), across * (width + _GAP), 3), _GREY, dtype=torch.uint8)
    for r, row in enumerate(rows):
        for c, index in enumerate(row):
            picture = x[index].detach().cpu().float().reshape(channels, height, width).clamp(0, 1)
            picture = (picture if channels in (1, 3) else picture.mean(0, keepdim=True)).mul(255).round()
            top, left = r * (height + _GAP), c * (width + _GAP)
            canvas[top : top + height, left : left + width] = picture.to(torch.uint8).permute(1, 2, 0).expand(-1, -1, 3)
    return images.fromarray(canvas.repeat_interleave(scale, 0).repeat_interleave(scale, 1).numpy())


def _video_library() -> Any:
    """imageio, with the encoder that its extra brings."""
    optional_import("imageio_ffmpeg", needed_for="an MP4 animation", extra="flows")
    return optional_import("imageio.v2", needed_for="an MP4 animation", extra="flows")


def _save_video(path: Path, frames: list[Any], rate: float) -> None:
    """Write pillow images as H.264; sides are padded to even lengths, which its colours need.

    Raises:
        OSError: the encoder left no file, of which it tells stderr alone.
    """
    numpy = optional_import("numpy", needed_for="an MP4 animation")
    with replacing(path) as unfinished:
        writer = _video_library().get_writer(unfinished, format="FFMPEG", fps=rate, codec="libx264", macro_block_size=1)
        with writer:
            for frame in frames:
                image = numpy.asarray(frame)
                odd = [(0, side % 2) for side in image.shape[:2]]
                writer.append_data(numpy.pad(image, [*odd, (0, 0)], constant_values=_GREY))
        if not (unfinished.is_file() and unfinished.stat().st_size):
            raise OSError(f"the encoder wrote no {path}: its messages are on stderr")


def _save(image: Any, path: Path) -> None:
    with replacing(path) as unfinished:
        image.save(unfinished)


def _projected(x: Tensor, axes: Tensor) -> Tensor:
    """``(n, 2)`` float64, by blocks of rows."""
    return torch.cat([rows.to(torch.float64) @ axes for rows in x.split(_ROWS)])


def _main_axes(*clouds: Tensor) -> Tensor:
    """``(d, 2)`` projection: the plane itself, or the two directions of largest variance with a fixed sign."""
    d, device = clouds[0].shape[1], clouds[0].device
    if d <= 2:
        return torch.eye(d, 2, dtype=torch.float64, device=device)
    blocks = [rows for x in clouds for rows in x.split(_ROWS)]
    mean = torch.stack([rows.sum(0, dtype=torch.float64) for rows in blocks]).sum(0) / sum(map(len, clouds))
    scatter = torch.zeros(d, d, dtype=torch.float64, device=device)
    for rows in blocks:
        centred = rows.to(torch.float64) - mean
        scatter += centred.T @ centred
    axes = torch.linalg.eigh(scatter).eigenvectors[:, -2:].flip(1)
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return axes * signs
