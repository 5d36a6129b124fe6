"""Figures show the numbers they are given, in both themes, and say what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.errors import MissingDependencyError

matplotlib = pytest.importorskip("matplotlib")
plots = pytest.importorskip("otdd_flash.plots")


@pytest.fixture
def matrix() -> otdd.DistanceMatrix:
    """Four points of a line: 0, 10, 0.5, 11."""
    points = torch.tensor([[0.0], [10.0], [0.5], [11.0]], dtype=torch.float64)
    values = torch.cdist(points, points).square()
    pairs = {(i, j): {"value": float(values[i, j]), "converged": True} for i in range(4) for j in range(i + 1, 4)}
    return otdd.DistanceMatrix(
        names=tuple("abcd"), values=values, errors=torch.zeros_like(values), certificates=pairs, failures=(),
        sets=(None,) * 4, epsilon=1.0, label_epsilon=None, reference_cost=None, options={"debiased": True},
    )  # fmt: skip


def test_heat_map_writes_the_distances_in_tree_order(matrix: otdd.DistanceMatrix) -> None:
    axes = plots.heat_map(matrix).axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert {frozenset(names[:2]), frozenset(names[2:])} == {frozenset("ac"), frozenset("bd")}
    shown = {tuple(map(int, text.get_position())): text.get_text() for text in axes.texts}
    for i, row in enumerate(names):
        for j, column in enumerate(names):
            assert float(shown[j, i]) == pytest.approx(matrix.distance(row, column), rel=1e-2)
    as_given = plots.heat_map(matrix, ordered=False, metric="value").axes[0]
    assert [label.get_text() for label in as_given.get_yticklabels()] == list("abcd")
    assert "100" in {text.get_text() for text in as_given.texts}


def test_heat_map_of_a_matrix_with_gaps(matrix: otdd.DistanceMatrix) -> None:
    matrix.values[0, 1] = matrix.values[1, 0] = torch.nan
    texts = [text.get_text() for text in plots.heat_map(matrix).axes[0].texts]
    assert texts.count("–") == 2


def test_dendrogram_joins_at_the_linkage_heights(matrix: otdd.DistanceMatrix) -> None:
    axes = plots.dendrogram(matrix).axes[0]
    heights = sorted(max(line.get_xdata()) for line in axes.lines)
    tree, _ = matrix.dendrogram()
    assert heights == pytest.approx(sorted(tree[:, 2]))
    assert {label.get_text() for label in axes.get_yticklabels()} == set("abcd")


def test_map_stands_where_mds_says(matrix: otdd.DistanceMatrix) -> None:
    axes = plots.set_map(matrix, seed=3).axes[0]
    offsets = torch.as_tensor(axes.collections[0].get_offsets().data)
    torch.testing.assert_close(offsets, matrix.mds(3).points)
    with pytest.raises(ValueError, match="method must be one of mds, tsne, got 'umap'"):
        plots.set_map(matrix, method="umap")


def test_class_coupling_shows_shares_of_the_source_class() -> None:
    figure = plots.class_coupling(torch.tensor([[0.3, 0.1], [0.0, 0.6]]), ["ant", "bee"], ["x", "y"])
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["0.75", "0.25", "0.00", "1.00"]
    with pytest.raises(ValueError, match=r"coupling is \(2, 2\) for 1 source_names and 2 target_names"):
        plots.class_coupling(torch.eye(2), ["ant"], ["x", "y"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_and_files(matrix: otdd.DistanceMatrix, theme: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    figure = plots.heat_map(matrix, theme=theme)
    assert dict(matplotlib.rcParams) == before
    ground = sum(figure.get_facecolor()[:3]) / 3
    ink = sum(matplotlib.colors.to_rgb(figure.axes[0].get_xticklabels()[0].get_color())) / 3
    assert (ground > 0.8 and ink < 0.3) if theme == "light" else (ground < 0.2 and ink > 0.7)
    assert plots.save(figure, tmp_path / "new" / "heat.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in plots.save(figure, tmp_path / "heat.svg").read_text()
    with pytest.raises(ValueError, match="theme must be one of light, dark, got"):
        plots.heat_map(matrix, theme="sepia")


def test_without_matplotlib_it_says_how_to_get_it(matrix: otdd.DistanceMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'otdd-flash\[plots\]'"):
        plots.heat_map(matrix)


def test_histogram_counts_every_sample_and_marks_some() -> None:
    scores = torch.linspace(-1, 3, 81, dtype=torch.float64)
    axes = plots.value_histogram(scores, marked=[-1.0, 3.0], label="score").axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 81
    assert axes.get_xlabel() == "score"
    zero, marks = axes.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert list(marks.get_xdata()) == [-1.0, 3.0]
    for wrong in (torch.empty(0), torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match="scores must be finite"):
            plots.value_histogram(wrong)


def test_class_distances_are_roots() -> None:
    axes = plots.class_distances(torch.tensor([[4.0, 9.0]]), ["a"], ["b", "c"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["2", "3"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("source", "target")
    with pytest.raises(ValueError, match=r"table is \(1, 2\) for 2 source_names and 2 target_names"):
        plots.class_distances(torch.ones(1, 2), ["a", "b"], ["b", "c"])


def test_names_are_neither_formulas_nor_endless(matrix: otdd.DistanceMatrix, tmp_path: Path) -> None:
    names = ("$\\frac{$", "$x$", "long " * 30, "<d>")
    for figure in (plots.heat_map, plots.dendrogram, plots.set_map):
        named = figure(otdd.DistanceMatrix(**{**vars(matrix), "names": names}))
        text = plots.save(named, tmp_path / "a.svg").read_text()
        assert "<!-- $\\frac{$ -->" in text
        assert "<!-- &lt;d&gt; -->" in text
        assert "long " * 7 not in text
        assert "…" in text


def test_names_with_halves_of_characters_are_drawn(matrix: otdd.DistanceMatrix, tmp_path: Path) -> None:
    """A file name that is no UTF-8 comes with lone surrogates, which a font cannot take."""
    names = ("caf\udce9", "nul\x00", "\u202eback", "plain")
    for figure in (plots.heat_map, plots.dendrogram, plots.set_map):
        named = figure(otdd.DistanceMatrix(**{**vars(matrix), "names": names}))
        assert "caf\N{REPLACEMENT CHARACTER}" in plots.save(named, tmp_path / "a.svg").read_text()


def test_axes_are_dark_enough_in_both_themes(matrix: otdd.DistanceMatrix) -> None:
    """Ticks are made while drawing, when the theme's settings are gone."""
    for theme, ink in (("light", "#1f2328"), ("dark", "#e6e8eb")):
        for figure in (plots.dendrogram(matrix, theme=theme), plots.value_histogram(torch.ones(3), theme=theme)):
            figure.draw_without_rendering()
            axes = figure.axes[0]
            colours = {matplotlib.colors.to_hex(label.get_color()) for label in axes.get_xticklabels()}
            assert colours == {ink}


def test_names_of_near_sets_do_not_cover_each_other() -> None:
    points = torch.tensor([[0.0, 0], [0.12, 0.02], [0.05, 1], [1, 0], [0.98, 0.06]], dtype=torch.float64)
    values = torch.cdist(points, points).square()
    near = otdd.DistanceMatrix(
        names=("first name", "second name", "third", "a fourth one", "the fifth"), values=values,
        errors=torch.zeros_like(values), certificates={}, failures=(), sets=(None,) * 5, epsilon=1.0,
        label_epsilon=None, reference_cost=None, options={"debiased": True},
    )  # fmt: skip
    figure = plots.set_map(near)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert [i for i, box in enumerate(boxes) if box.count_overlaps(boxes[i + 1 :])] == []
    assert {text.get_va() for text in figure.axes[0].texts} != {"bottom"}
