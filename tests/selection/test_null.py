"""The null of a reference: its level, solved once, kept by content, damaged files noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.selection import null as null_module
from otdd_flash.selection.check import DriftCheck
from otdd_flash.selection.parts import split_statistics
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
    original = null_module.ReferenceNull._solve

    def counted(self, *arguments):
        made.append(self._options.permutations)
        return original(self, *arguments)

    monkeypatch.setattr(null_module.ReferenceNull, "_solve", counted)
    return made


def heavy(n: int, seed: int) -> LabeledDataset:
    """A table with the tails that tables have: a few rows in a hundred are far out, in features of their own."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return otdd.from_arrays(x / torch.rand(n, 3, generator=generator, dtype=torch.float64).sqrt(), y)


@pytest.mark.parametrize("population", [draw, heavy])
def test_level_is_kept_where_references_and_batches_are_fresh(population) -> None:
    """25 runs: at most as many rejections as a right test has in 999 of 1,000 studies."""
    scipy = pytest.importorskip("scipy.stats")
    p = [
        otdd.check(population(40, 2 * s), population(12, 2 * s + 1), cache=None, seed=s, **QUICK).p_value
        for s in range(25)
    ]
    for level in (0.025, 0.05):
        assert sum(value <= level for value in p) <= scipy.binom.ppf(0.999, 25, level), level
    assert 0.2 < sum(value > 0.5 for value in p) / 25 < 0.8, "what is cleared has nearly uniform p-values"


def test_batches_of_one_reference_see_samples_of_their_own() -> None:
    """One sample for all batches would share its accidents with them: all would be rejected, or none."""
    reference = draw(400, 0)
    watch = DriftCheck(reference, max_samples=40, permutations=19)
    samples = [watch._sample(draw(40, seed)).ids.tolist() for seed in (1, 2, 1)]
    assert samples[0] == samples[2] != samples[1]
    assert len(set(samples[0])) == 40
    assert samples[0] == sorted(samples[0])


def test_a_batch_that_is_not_cleared_is_tested_by_the_pooled_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the reference that are far too small reject everything; the exact test has the last word."""
    original = null_module.ReferenceNull._solve

    def small(self, *arguments):
        null = original(self, *arguments)
        return replace(null, parts={name: values - values.max() - 1e3 for name, values in null.parts.items()})

    clean = otdd.check(draw(200, 0), draw(40, 1), cache=None, **QUICK)
    monkeypatch.setattr(null_module.ReferenceNull, "_solve", small)
    found = otdd.check(draw(200, 0), draw(40, 1), cache=None, **QUICK)
    assert (clean.null_of, clean.exceeded) == ("reference", False)
    assert (found.null_of, found.exceeded) == ("pooled", False)
    assert found.p_value > 0.05
    assert found.value == pytest.approx(clean.value, rel=1e-9)


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


def test_value_and_null_are_those_of_samples_and_their_splits() -> None:
    """The observed parts by the very function of the pooled test, the null's by it on rows of the reference alone."""
    reference, batch = draw(90, 0), draw(25, 1)
    watch = DriftCheck(reference, cache=None, max_samples=30, **QUICK).update(batch)
    found = watch.compute()
    sample = watch._sample(batch)
    assert (found.n, found.m, found.seen) == (30, 25, (90, 25))
    alone = otdd.check(sample, batch, permutations=0, threshold=1.0)
    assert found.value == pytest.approx(alone.value, rel=1e-9)
    null = watch._null.statistics(30, 25)
    assert {len(values) for values in null.parts.values()} == {39}
    rows = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:55]
    first = split_statistics(reference.subset(rows), 30, watch.options, permutations=3, seed=0)
    for name, values in first.parts.items():
        torch.testing.assert_close(null.parts[name][:4], values)


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
    otdd.check(reference, draw(30, 1), cache=tmp_path, alpha=0.2, new_classes="allow", strict=True, **QUICK)
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


@pytest.mark.parametrize(
    "content", ["{", '{"parts": {"distance": [1.0]}}', '{"parts": "x", "marginal_error": 0.0}', "[]", "\x00"]
)
def test_a_damaged_file_is_said_and_computed_anew(content: str, tmp_path: Path) -> None:
    reference, batch = draw(100, 0), draw(30, 1)
    first = otdd.check(reference, batch, cache=tmp_path, **QUICK)
    (path,) = (tmp_path / "null").iterdir()
    path.write_text(content)
    with pytest.warns(UserWarning, match="computed anew"):
        second = otdd.check(reference, batch, cache=tmp_path, **QUICK)
    assert second == first
    assert len(json.loads(path.read_text())["parts"]["classes"]) == 39
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
    with pytest.raises(ValueError, match="null must be one of pooled, reference, got 'both'"):
        otdd.check(draw(31, 0), draw(30, 1), null="both")
