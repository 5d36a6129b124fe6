"""The null of a reference: uniform p-values, solved once, kept by content, damaged files noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import otdd_flash as otdd
from otdd_flash import reference as oracle
from otdd_flash.labels import label_distances
from otdd_flash.selection import null as null_module
from otdd_flash.selection.check import DriftCheck
from otdd_flash.selection.permutation import drawn_weights
from otdd_flash.types import LabeledDataset

QUICK = {"null": "reference", "permutations": 39}


def draw(n: int, seed: int, shift: float = 0.0) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64) + 2 * torch.nn.functional.one_hot(y, 3)
    x[:, 0] += shift
    return otdd.from_arrays(x, y, name=f"draw {seed}")


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of permutations of every solve of a null."""
    made: list[int] = []
    original = null_module.drawn_weights

    def counted(*arguments):
        made.append(arguments[3])
        return original(*arguments)

    monkeypatch.setattr(null_module, "drawn_weights", counted)
    return made


def test_p_values_are_uniform_under_the_null() -> None:
    """200 runs of fresh references and batches: rates within binomial bounds, one in a thousand on either side."""
    scipy = pytest.importorskip("scipy.stats")
    p = [otdd.check(draw(80, 2 * s), draw(20, 2 * s + 1), cache=None, seed=s, **QUICK).p_value for s in range(200)]
    for level in (0.05, 0.25, 0.5):
        low, high = scipy.binom.ppf([0.001, 0.999], 200, level)
        assert low <= sum(value <= level for value in p) <= high, level


@pytest.mark.parametrize("kind", ["features", "labels", "priors"])
def test_drift_is_found(kind: str) -> None:
    reference, batch = draw(200, 0), draw(80, 1, shift=1.0 if kind == "features" else 0.0)
    if kind == "labels":
        batch = replace(batch, y=(batch.y + 1) % 3)
    if kind == "priors":
        batch = batch.subset((batch.y != 0).nonzero()[:, 0])
    found = otdd.check(reference, batch, cache=None, **QUICK)
    assert found.exceeded
    assert found.p_value <= 2 / 40
    assert not otdd.check(reference, draw(80, 2), cache=None, **QUICK).exceeded


def test_value_is_a_distance_between_sample_and_batch() -> None:
    """The statistic by hand: class distances from the whole reference and the batch, classes matched by name."""
    reference, batch = draw(90, 0), draw(40, 1)
    watch = DriftCheck(reference, cache=None, max_samples=40, tol=1e-9, **QUICK).update(batch)
    found = watch.compute()
    sample = watch._null.sample(40)
    assert (found.n, found.m, found.seen) == (40, 40, (90, 40))
    whole = otdd.from_arrays(torch.cat([watch._null.rows.x, batch.x]), torch.cat([watch._null.rows.y, batch.y]))
    table = label_distances(whole, whole, method="gaussian_diag").source_source
    x, y = torch.cat([sample.x, batch.x]), torch.cat([sample.y, batch.y])
    cost = torch.cdist(x, x).square() + table[y][:, y]
    assert found.epsilon == pytest.approx(0.1 * float(cost.mean()), rel=1e-9)
    a = torch.full((40,), 1 / 40, dtype=torch.float64)
    parts = [
        oracle.ot_value(cost[rows, columns], a, a, found.epsilon)
        for rows, columns in ((slice(40), slice(40, 80)), (slice(40), slice(40)), (slice(40, 80), slice(40, 80)))
    ]
    assert found.value == pytest.approx(parts[0] - parts[1] / 2 - parts[2] / 2, rel=1e-6)


def test_null_values_are_statistics_of_disjoint_samples_of_the_reference() -> None:
    null = null_module.ReferenceNull(draw(90, 0), otdd.CheckOptions(max_samples=30, tol=1e-9, **QUICK), None)
    rows, values = null.rows, null.statistics(25).values
    a, b = drawn_weights(rows.normalised_weights, 30, 25, 39, 0)
    assert (a > 0).sum(0).tolist() == [30] * 39
    assert (b > 0).sum(0).tolist() == [25] * 39
    assert not bool(((a > 0) & (b > 0)).any())
    table = label_distances(rows, rows, method="gaussian_diag").source_source
    cost = torch.cdist(rows.x, rows.x).square() + table[rows.y][:, rows.y]
    epsilon = 0.1 * float(cost.mean())
    for k in (0, 17, 38):
        left, right = (a[:, k] > 0).nonzero()[:, 0], (b[:, k] > 0).nonzero()[:, 0]
        parts = [
            oracle.ot_value(cost[i][:, j], w, v, epsilon)
            for i, j, w, v in (
                (left, right, a[left, k], b[right, k]),
                (left, left, a[left, k], a[left, k]),
                (right, right, b[right, k], b[right, k]),
            )
        ]
        assert float(values[k]) == pytest.approx(parts[0] - parts[1] / 2 - parts[2] / 2, rel=1e-6)


def test_solved_once_and_kept_on_disk(tmp_path: Path, solved: list[int]) -> None:
    reference = draw(100, 0)
    watch = DriftCheck(reference, cache=tmp_path, **QUICK)
    first = watch.update(draw(30, 1)).compute()
    watch.reset()
    watch.update(draw(30, 2)).compute()
    assert solved == [39], "the second batch of that size finds it in memory"
    assert (first.null_of, first.null_cached) == ("reference", False)
    again = otdd.check(reference, draw(30, 1), cache=tmp_path, **QUICK)
    assert solved == [39]
    assert again.null_cached
    assert replace(again, null_cached=False) == first
    assert [path.suffix for path in (tmp_path / "null").iterdir()] == [".json"]
    otdd.check(reference, draw(30, 1), cache=tmp_path, alpha=0.2, **QUICK)
    assert solved == [39], "the gate is not part of the key"


@pytest.mark.parametrize("change", ["reference", "labels", "size", "option", "names"])
def test_anything_that_matters_is_in_the_key(change: str, tmp_path: Path, solved: list[int]) -> None:
    reference, batch = draw(100, 0), draw(30, 1)
    otdd.check(reference, batch, cache=tmp_path, **QUICK)
    options = dict(QUICK)
    if change == "reference":
        reference = replace(reference, x=reference.x + 1e-9)
    if change == "labels":
        reference = replace(reference, y=(reference.y + 1) % 3)
    if change == "names":
        reference = replace(reference, class_names=("a", "b", "c"))
    if change == "size":
        batch = draw(31, 1)
    if change == "option":
        options["relative_epsilon"] = 0.2
    found = otdd.check(reference, batch, cache=tmp_path, **options)
    assert not found.null_cached
    assert len(solved) == 2


@pytest.mark.parametrize("content", ["{", '{"values": [1.0]}', '{"values": "x", "marginal_error": 0.0}', "[]", "\x00"])
def test_a_damaged_file_is_said_and_computed_anew(content: str, tmp_path: Path) -> None:
    reference, batch = draw(100, 0), draw(30, 1)
    first = otdd.check(reference, batch, cache=tmp_path, **QUICK)
    (path,) = (tmp_path / "null").iterdir()
    path.write_text(content)
    with pytest.warns(UserWarning, match="computed anew"):
        second = otdd.check(reference, batch, cache=tmp_path, **QUICK)
    assert second == first
    assert len(json.loads(path.read_text())["values"]) == 39
    assert otdd.check(reference, batch, cache=tmp_path, **QUICK).null_cached


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="could not be kept"):
        found = otdd.check(draw(100, 0), draw(30, 1), cache=tmp_path / "file", **QUICK)
    assert found.p_value is not None


def test_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTDD_CACHE", str(tmp_path))
    otdd.check(draw(100, 0), draw(30, 1), **QUICK)
    assert len(list((tmp_path / "checks" / "null").iterdir())) == 1
    otdd.check(draw(100, 0), draw(30, 1), permutations=39)
    assert len(list(tmp_path.rglob("*.json"))) == 1, "the pooled null is not kept: it belongs to the batch"


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"a batch of 30 rows: it has 31; give a larger reference"):
        otdd.check(draw(31, 0), draw(30, 1), cache=None, **QUICK)
    with pytest.raises(ValueError, match="null must be pooled or reference, got 'both'"):
        otdd.check(draw(31, 0), draw(30, 1), null="both")
