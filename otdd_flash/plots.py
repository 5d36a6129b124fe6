"""Figures of distance matrices and couplings: matplotlib alone (extra ``plots``), no global state, light and dark.

Every function returns a ``matplotlib.figure.Figure``; :func:`save` writes it as PNG, SVG or PDF by its ending.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from otdd_flash.canvas import load_matplotlib, new_figure
from otdd_flash.checks import (
    check_choice,
    check_flag,
    check_list,
    check_number,
    check_path,
    check_tensor,
    check_text,
    check_type,
)
from otdd_flash.errors import optional_import
from otdd_flash.matrix import DistanceMatrix
from otdd_flash.palette import COLOURS, Theme

_MAPS = {"light": "Blues", "dark": "Blues_r"}  # little is near the ground's own colour in both
_ANNOTATED = 16  # cells a side up to which numbers are written into a heat map
# Where a name can stand beside its point: shift in points of print, and how the text is aligned there.
_SIDES: tuple[tuple[tuple[int, int], str, str], ...] = (
    ((0, 6), "center", "bottom"), ((0, -6), "center", "top"), ((7, 0), "left", "center"), ((-7, 0), "right", "center"),
)  # fmt: skip
_MAP_LETTERS = 9  # points of print
# Control characters, halves of surrogate pairs, and orders to write backwards: none of them belongs in a name.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_LONGEST = 32  # characters of a name; the rest of a longer one is left out


def heat_map(
    matrix: DistanceMatrix, *, metric: Literal["root", "value"] = "root", ordered: bool = True, theme: Theme = "light"
) -> Any:
    """The distance matrix as colours, with numbers where they can be read.

    Args:
        matrix: may have gaps; they are grey with a dash.
        metric: ``root`` for distances, ``value`` for squared ones.
        ordered: sets in the order of the dendrogram's leaves (of a matrix without gaps), else as given.
        theme: ``light`` or ``dark``.
    """
    check_type("matrix", matrix, DistanceMatrix, "give the result of otdd_flash.pairwise")
    check_choice("theme", theme, get_args(Theme))
    check_choice("metric", metric, ("root", "value"))
    check_flag("ordered", ordered)
    if ordered and matrix.complete and len(matrix) > 2:
        matrix = matrix.subset([matrix.names[i] for i in matrix.dendrogram()[1]])
    table = matrix.roots if metric == "root" else matrix.values
    title = "distance" if metric == "root" else "squared distance"
    return _cells(table, matrix.names, matrix.names, title, theme, square=True)


def class_coupling(
    coupling: Tensor, source_names: Sequence[str], target_names: Sequence[str], *, theme: Theme = "light"
) -> Any:
    """Mass sent from each source class to each target class, as a share of the source class.

    Args:
        coupling: ``(c, c')`` from :meth:`otdd_flash.sinkhorn.TransportPlan.class_coupling`.
        source_names: ``c`` names.
        target_names: ``c'`` names.
        theme: ``light`` or ``dark``.
    """
    _check_cells("coupling", coupling, source_names, target_names, theme)
    shares = coupling.double() / coupling.double().sum(1, keepdim=True)
    title = "share of the source class"
    return _cells(shares, source_names, target_names, title, theme, axes=("source", "target"), form=".2f")


def class_distances(
    table: Tensor, source_names: Sequence[str], target_names: Sequence[str], *, theme: Theme = "light"
) -> Any:
    """Distances between the classes of two sets: the roots of a table of squared ones.

    Args:
        table: ``(c, c')`` squared distances, as :attr:`otdd_flash.labels.LabelDistances.source_target`.
        source_names: ``c`` names.
        target_names: ``c'`` names.
        theme: ``light`` or ``dark``.
    """
    _check_cells("table", table, source_names, target_names, theme)
    roots = table.double().clamp_min(0).sqrt()
    return _cells(roots, source_names, target_names, "distance of classes", theme, axes=("source", "target"))


def value_histogram(
    scores: Tensor, *, marked: Sequence[float] = (), label: str = "sample value", theme: Theme = "light"
) -> Any:
    """How the values of samples are spread; right of zero is what takes the pool away from the target.

    Args:
        scores: ``(n,)`` from :meth:`otdd_flash.selection.values.SampleValues.scores`.
        marked: scores to mark on the axis, such as those of samples shown beside the figure.
        label: of the axis.
        theme: ``light`` or ``dark``.

    Raises:
        ValueError: no scores, or some that are not finite.
    """
    check_choice("theme", theme, get_args(Theme))
    check_text("label", label)
    for mark in check_list("marked", marked):
        check_number("marked", mark, low=-math.inf)
    if isinstance(scores, Tensor):
        check_tensor("scores", scores)
    else:
        check_list("scores", scores)
        for score in scores:
            check_number("scores", score, low=-math.inf)
    values = torch.as_tensor(scores).detach().double().flatten().cpu()
    if not values.numel() or not bool(values.isfinite().all()):
        raise ValueError("scores must be finite numbers, at least one")
    bins = min(60, max(10, math.isqrt(values.numel()) * 2))
    with _figure(theme, 5.0, 2.5) as (figure, axes):
        axes.hist(values.numpy(), bins=bins, color=COLOURS[theme]["accent"])
        axes.axvline(0, color=COLOURS[theme]["ink"], linewidth=0.8, linestyle=(0, (4, 3)))
        if marked:
            across = axes.get_xaxis_transform()
            axes.plot(
                list(marked), [-0.03] * len(marked), "|", transform=across, color=COLOURS[theme]["ink"], clip_on=False
            )
        axes.set_xlabel(label)
        axes.set_ylabel("samples")
        axes.tick_params(axis="x", pad=8)
        _only(axes, "bottom", "left")
    return figure


def dendrogram(matrix: DistanceMatrix, *, method: str = "average", theme: Theme = "light") -> Any:
    """The tree of the sets; a joint stands at the distance between its two groups.

    Args:
        matrix: without gaps.
        method: scipy's linkage: ``average``, ``complete``, ``single``, ...
        theme: ``light`` or ``dark``.
    """
    check_type("matrix", matrix, DistanceMatrix, "give the result of otdd_flash.pairwise")
    check_choice("theme", theme, get_args(Theme))
    hierarchy = optional_import("scipy.cluster.hierarchy", needed_for="a dendrogram")
    tree, _ = matrix.dendrogram(method)
    drawn = hierarchy.dendrogram(tree, no_plot=True)
    with _figure(theme, 5.6, 1.2 + 0.3 * len(matrix)) as (figure, axes):
        for heights, places in zip(drawn["dcoord"], drawn["icoord"], strict=True):
            axes.plot(heights, places, color=COLOURS[theme]["accent"], linewidth=1.6, solid_joinstyle="miter")
        leaves = [matrix.names[i] for i in drawn["leaves"]]
        axes.set_yticks([5 + 10 * i for i in range(len(leaves))], _short(leaves))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(0, 10 * len(leaves))
        axes.set_xlim(left=0)
        axes.set_xlabel(f"distance between groups ({method} linkage)")
        _only(axes, "bottom")
    return figure


def set_map(
    matrix: DistanceMatrix, *, method: Literal["mds", "tsne"] = "mds", seed: int = 0, theme: Theme = "light"
) -> Any:
    """The sets as points of a plane.

    Args:
        matrix: without gaps.
        method: ``mds`` keeps distances, ``tsne`` neighbourhoods.
        seed: of the map.
        theme: ``light`` or ``dark``.
    """
    check_type("matrix", matrix, DistanceMatrix, "give the result of otdd_flash.pairwise")
    check_choice("theme", theme, get_args(Theme))
    check_choice("method", method, ("mds", "tsne"))
    found = matrix.mds(seed) if method == "mds" else matrix.tsne(seed)
    x, y = found.points.T.tolist()
    with _figure(theme, 5.2, 4.8) as (figure, axes):
        axes.scatter(x, y, s=42, color=COLOURS[theme]["accent"], zorder=2)
        names = _short(matrix.names)
        for name, place, side in zip(names, zip(x, y, strict=True), _sides(found.points, names), strict=True):
            shift, across, along = _SIDES[side]
            style = {"ha": across, "va": along, "fontsize": _MAP_LETTERS}
            axes.annotate(name, place, xytext=shift, textcoords="offset points", **style)
        axes.margins(0.15)
        axes.set_xticks([])
        axes.set_yticks([])
        if method == "mds":
            axes.set_aspect("equal", adjustable="datalim")
        label = f"MDS of the distances, stress {found.stress:.2f}" if method == "mds" else "t-SNE: neighbourhoods only"
        axes.set_xlabel(label)
        _only(axes)
    return figure


def save(figure: Any, path: str | os.PathLike[str], *, dpi: int = 160) -> Path:
    """Write ``figure`` as the ending of ``path`` says (``.png``, ``.svg``, ``.pdf``), on its own ground.

    Args:
        figure: of this module, or any of matplotlib.
        path: of the file; its folder is made.
        dpi: of pixels.
    """
    check_path("path", path)
    check_number("dpi", dpi)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, facecolor=figure.get_facecolor(), bbox_inches="tight", pad_inches=0.15)
    return path


def _check_cells(name: str, table: Any, source_names: Any, target_names: Any, theme: Any) -> None:
    """Refuse a table that is not one row a source name and one column a target name."""
    check_choice("theme", theme, get_args(Theme))
    for argument, names in (("source_names", source_names), ("target_names", target_names)):
        for name_of_class in check_list(argument, names):
            check_text(argument, name_of_class)
    check_tensor(name, table)
    if tuple(table.shape) != (len(source_names), len(target_names)):
        raise ValueError(
            f"{name} is {tuple(table.shape)} for {len(source_names)} source_names and {len(target_names)} target_names"
        )


def _cells(
    table: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    theme: Theme,
    *,
    square: bool = False,
    axes: tuple[str, str] | None = None,
    form: str = ".3g",
) -> Any:
    """A table as coloured cells with a bar of colours."""
    matplotlib = load_matplotlib(needed_for="a heat map")
    numbers = torch.as_tensor(table).double()
    known = numbers[numbers.isfinite()]
    low, high = (0.0, float(known.max())) if known.numel() else (0.0, 1.0)
    if square and known.numel():
        apart = numbers[~torch.eye(len(rows), dtype=torch.bool)]
        apart = apart[apart.isfinite()]
        # between the nearest and the farthest pair: zero on the diagonal would take half of the colours
        low = float(apart.min()) - 0.25 * float(apart.max() - apart.min()) if apart.numel() else 0.0
    high = high if high > low else low + 1.0
    width, height = (1.6 + 0.62 * max(len(names), 3) for names in (columns, rows))
    with _figure(theme, min(width + 1.2, 24), min(height, 22)) as (figure, panel):
        panel.set_facecolor(COLOURS[theme]["gap"])
        colours = matplotlib.colormaps[_MAPS[theme]].with_extremes(
            bad=COLOURS[theme]["gap"], under=COLOURS[theme]["ground"]
        )
        image = panel.imshow(numbers.numpy(), cmap=colours, vmin=low, vmax=high, aspect="equal" if square else "auto")
        panel.set_xticks(range(len(columns)), _short(columns), rotation=45, ha="right", rotation_mode="anchor")
        panel.set_yticks(range(len(rows)), _short(rows))
        panel.tick_params(length=0)
        if axes is not None:
            panel.set_ylabel(axes[0])
            panel.set_xlabel(axes[1])
        if max(len(rows), len(columns)) <= _ANNOTATED:
            _write_numbers(panel, numbers, colours, (low, high), theme, form)
        _only(panel)
        bar = figure.colorbar(image, ax=panel, fraction=0.046, pad=0.03, extend="min" if square and low > 0 else None)
        bar.set_label(title)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
    return figure


def _write_numbers(
    panel: Any, numbers: Tensor, colours: Any, limits: tuple[float, float], theme: Theme, form: str
) -> None:
    """A number in each cell, dark on light cells and light on dark ones."""
    low, high = limits
    for i, row in enumerate(numbers.tolist()):
        for j, value in enumerate(row):
            if not math.isfinite(value):
                panel.text(j, i, "–", ha="center", va="center", color=COLOURS[theme]["muted"], fontsize=8)
                continue
            red, green, blue, _ = colours((value - low) / (high - low))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            shade = COLOURS["light"]["ink"] if light else COLOURS["dark"]["ink"]
            panel.text(j, i, f"{value:{form}}", ha="center", va="center", color=shade, fontsize=8)


@contextmanager
def _figure(theme: Theme, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """A figure with one panel in the theme's colours; matplotlib's own settings are left alone."""
    if theme not in COLOURS:
        raise ValueError(f"theme must be light or dark, got {theme!r}")
    matplotlib = load_matplotlib(needed_for="a figure")
    ink, muted, ground = (COLOURS[theme][name] for name in ("ink", "muted", "ground"))
    style = {
        "figure.facecolor": ground, "axes.facecolor": ground, "text.color": ink, "axes.labelcolor": ink,
        "axes.edgecolor": muted, "font.size": 10, "axes.titlesize": 10,
        "text.parse_math": False,  # a class may be called $x_{
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = new_figure(width, height, needed_for="a figure")
        axes = figure.add_subplot()
        axes.tick_params(color=muted, labelcolor=ink)  # ticks are made when drawn, after these settings are gone
        yield figure, axes


def printable(text: str) -> str:
    """``text`` with a mark in place of what neither a figure nor a page can hold."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _short(names: Sequence[str]) -> list[str]:
    """Names that leave room for the figure."""
    shown = [printable(name) for name in names]
    return [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in shown]


def _sides(points: Tensor, names: Sequence[str]) -> list[int]:
    """For each point of a map the side for its name: the first of ``_SIDES`` that covers least of what is there.

    Sizes are estimates, in points of print: the map is about 340 of them wide, a letter 0.6 of its height.
    """
    span = float((points.amax(0) - points.amin(0)).max())
    places = ((points - points.mean(0)) * (340 / 1.3 / span if span > 0 else 0.0)).tolist()
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    chosen = []
    for (x, y), name in zip(places, names, strict=True):
        width, height = 0.6 * _MAP_LETTERS * len(name), 1.2 * _MAP_LETTERS
        boxes = []
        for (right, up), across, along in _SIDES:
            left = x + right - width * {"left": 0.0, "center": 0.5, "right": 1.0}[across]
            low = y + up - height * {"bottom": 0.0, "center": 0.5, "top": 1.0}[along]
            boxes.append((left, low, left + width, low + height))
        covered = [sum(_overlap(box, other) for other in taken) for box in boxes]
        chosen.append(covered.index(min(covered)))
        taken.append(boxes[chosen[-1]])
    return chosen


def _overlap(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Area that two boxes (left, low, right, high) share."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(width, 0.0) * max(height, 0.0)


def _only(axes: Any, *kept: str) -> None:
    """Keep these spines alone."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in kept)
