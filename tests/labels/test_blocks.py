"""Label tables of many sets together: the same as those of single pairs, in any company and any batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from otdd_flash import from_arrays
from otdd_flash.labels import LabelSinkhorn, class_problems, label_distances
from otdd_flash.labels.blocks import class_statistics, class_statistics_of, cross_table, cross_tables, known_statistics
from otdd_flash.sinkhorn import Execution, SolverOptions
from otdd_flash.types import LabeledDataset

METHODS = ("means", "gaussian_diag", "gaussian", "sinkhorn", "callable")
SINKHORN = LabelSinkhorn(epsilon=1.0, options=SolverOptions(tol=1e-9, max_iterations=5000))


def data(sizes: tuple[int, ...], d: int = 3, seed: int = 0, shift: float = 0.0) -> LabeledDataset:
    rng = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(y), d, generator=rng, dtype=torch.float64) + y[:, None] + shift
    return from_arrays(x, y, name=f"set{seed}")


def chosen(method: str):
    return (lambda p, q: (p.mean(0) - q.mean(0)).abs().sum()) if method == "callable" else method


SETS = [data((5, 1, 9), seed=1), data((7, 12), seed=2), data((4,), seed=3), data((5, 1, 9), seed=1)]
PAIRS = [(0, 1), (2, 0), (1, 2), (0, 3), (3, 1), (0, 0)]


def close(left: Tensor, right: Tensor, method: str) -> None:
    tolerance = 1e-6 if method == "sinkhorn" else 1e-12
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("budget", [None, 1])
@pytest.mark.parametrize("method", METHODS)
def test_many_equal_label_distances_of_each_pair(method: str, budget: int | None) -> None:
    """A memory budget of one byte cuts the batches to single sets and pairs."""
    settings = replace(SINKHORN, execution=Execution(memory_budget=budget))
    statistics = class_statistics_of(SETS, chosen(method), sinkhorn=settings)
    tables = cross_tables([(statistics[i], statistics[j]) for i, j in PAIRS], chosen(method), sinkhorn=settings)
    for (i, j), block in zip(PAIRS, tables, strict=True):
        joint = label_distances(SETS[i], SETS[j], method=chosen(method), sinkhorn=SINKHORN)
        close(block.table, joint.source_target, method)
        close(statistics[i].own, joint.source_source, method)
        assert block.converged
        assert block.error <= 1e-2
    same = tables[PAIRS.index((0, 3))].table
    assert same.diagonal().tolist() == [0.0] * 3  # the very same samples, to the last bit


@pytest.mark.parametrize("method", METHODS)
def test_one_is_the_first_of_many(method: str) -> None:
    statistics = class_statistics_of(SETS[:2], chosen(method), sinkhorn=SINKHORN)
    alone = class_statistics(SETS[0], chosen(method), sinkhorn=SINKHORN)
    close(statistics[0].own, alone.own, method)
    again = known_statistics(SETS[0], alone.tensors())
    assert torch.equal(again.own, alone.own)
    close(
        cross_tables([(statistics[1], again)], chosen(method), sinkhorn=SINKHORN)[0].table,
        cross_table(statistics[1], alone, chosen(method), sinkhorn=SINKHORN).table,
        method,
    )


@pytest.mark.parametrize("method", ["gaussian", "sinkhorn"])
def test_sets_of_other_widths_and_far_away_keep_their_numbers(method: str) -> None:
    wide, far = data((6, 4), d=5, seed=5), data((5, 9), seed=6, shift=1e5)
    together = class_statistics_of([SETS[0], wide, far, SETS[1]], method, sinkhorn=SINKHORN)
    for statistics, dataset in zip(together, (SETS[0], wide, far, SETS[1]), strict=True):
        close(statistics.own, class_statistics(dataset, method, sinkhorn=SINKHORN).own, method)


def test_batches_are_cut_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    solve = class_problems.solve_classes

    def counted(classes, problems, settings, terms):
        solved.append(len(problems))
        return solve(classes, problems, settings, terms)

    monkeypatch.setattr(class_problems, "solve_classes", counted)
    class_statistics_of(SETS[:3], "sinkhorn", sinkhorn=SINKHORN)
    size = 2 * 15 * 3 * 8 + 8 * 15 * 15  # of the first set; the other two fit into one batch after it
    small = replace(SINKHORN, execution=Execution(memory_budget=2 * size))
    class_statistics_of(SETS[:3], "sinkhorn", sinkhorn=small)
    assert solved == [6 + 3 + 1, 6, 3 + 1]


def test_a_cross_table_that_is_not_finite_names_the_classes() -> None:
    huge = from_arrays(torch.tensor([[1e200], [-1e200]], dtype=torch.float64), [0, 0], name="huge")
    statistics = class_statistics_of([data((3,), d=1), huge], "gaussian_diag")
    with pytest.raises(ValueError, match="set0/0 and huge/0 is inf"):
        cross_tables([(statistics[0], statistics[1])], "gaussian_diag")


def test_nothing_of_nothing() -> None:
    assert class_statistics_of([], "means") == []
    assert cross_tables([], "gaussian") == []
