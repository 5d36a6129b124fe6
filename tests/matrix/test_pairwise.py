"""pairwise: entries are dataset_distance's, work is done once, runs stop and go on, failures stay where they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash.errors import NotConvergedError, NotConvergedWarning
from otdd_flash.matrix import collect
from otdd_flash.matrix.worker import Worker

TIGHT = {"tol": 1e-9, "precision": "fp64", "relative_epsilon": 0.1}


def blobs(n: int, classes: int, seed: int, shift: float = 0.0) -> otdd.LabeledDataset:
    """Classes of equal size; ``n`` is a multiple of their number."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = np.random.default_rng(99).normal(size=(classes, 4))
    return otdd.from_arrays(centres[y] + rng.normal(size=(n, 4)) + shift, y, name=f"blobs {seed}")


def broken() -> otdd.LabeledDataset:
    raise OSError("the disk is gone")


def of_another_width() -> otdd.LabeledDataset:
    return otdd.from_arrays(np.eye(6), np.arange(6) % 2)


SETS = {"a": blobs(30, 2, 0), "b": blobs(33, 3, 1, 0.5), "c": blobs(28, 4, 2, 1.0)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the solves that workers of this process make."""
    made: list[str] = []
    original: Callable = Worker.terms

    def counted(self, shared, members):
        made.extend("self" if len(member.sets) == 1 else "pair" for member in members)
        return original(self, shared, members)

    monkeypatch.setattr(Worker, "terms", counted)
    return made


def squared(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p.mean(0) - q.mean(0)).square().sum())


@pytest.mark.parametrize("method", ["means", "gaussian_diag", "gaussian", "sinkhorn", None, squared])
def test_entries_are_dataset_distances(method) -> None:
    choices = {**TIGHT, "label_distance": method, "label_weight": 0.7, "feature_weight": 1.3}
    if callable(method):
        choices["epsilon"] = 2.0
    if method == "sinkhorn":
        choices["label_epsilon"] = 0.5
    matrix = otdd.pairwise(SETS, **choices)
    assert matrix.converged
    assert len(matrix.certificates) == 3
    for (i, j), certificate in matrix.certificates.items():
        first, second = (SETS[matrix.names[p]] for p in (i, j))
        alone = otdd.dataset_distance(first, second, **{**choices, "epsilon": matrix.epsilon})
        assert certificate["value"] == pytest.approx(alone.value, rel=1e-7)
        assert certificate["mean_cost"] == pytest.approx(alone.mean_cost, rel=1e-9)
        assert matrix.values[i, j] == matrix.values[j, i] == certificate["value"]
        if method is not None:
            torch.testing.assert_close(
                torch.tensor(certificate["label_table"]).double(),
                alone.label_distances.source_target,
                rtol=1e-5,
                atol=1e-7,
            )
    assert matrix.values.diagonal().tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["means", "gaussian_diag", None])
def test_reference_cost_is_the_mean_cost_of_all_pairs(method: str | None) -> None:
    matrix = otdd.pairwise(SETS, **TIGHT, label_distance=method, label_weight=2.0)
    mean = sum(certificate["mean_cost"] for certificate in matrix.certificates.values()) / 3
    assert matrix.reference_cost == pytest.approx(mean, rel=1e-9)
    assert matrix.epsilon == pytest.approx(0.1 * mean, rel=1e-9)


def test_label_epsilon_is_a_hundredth_of_the_mean_class_cost() -> None:
    from otdd_flash.labels import class_samples
    from otdd_flash.labels.class_sinkhorn import mean_class_cost

    matrix = otdd.pairwise(SETS, relative_epsilon=0.1, label_distance="sinkhorn")
    classes = [sample for dataset in SETS.values() for sample in class_samples(dataset)]
    assert matrix.label_epsilon == pytest.approx(0.01 * mean_class_cost(classes), rel=1e-9)


def test_far_from_the_origin_the_epsilon_stays() -> None:
    moved = {name: otdd.from_arrays(data.x + 1e6, data.y) for name, data in SETS.items()}
    here, there = (otdd.pairwise(sets, **TIGHT, label_distance=None).epsilon for sets in (SETS, moved))
    assert there == pytest.approx(here, rel=1e-6)


def test_without_debiasing_the_diagonal_is_the_self_term() -> None:
    matrix = otdd.pairwise(SETS, **TIGHT, debiased=False)
    alone = otdd.dataset_distance(SETS["a"], SETS["a"], **{**TIGHT, "epsilon": matrix.epsilon, "debiased": False})
    assert float(matrix.values[0, 0]) == pytest.approx(alone.value, rel=1e-7)
    pair = otdd.dataset_distance(SETS["a"], SETS["b"], **{**TIGHT, "epsilon": matrix.epsilon, "debiased": False})
    assert float(matrix.values[0, 1]) == pytest.approx(pair.value, rel=1e-7)


def test_self_terms_are_solved_once_and_equal_sets_are_at_zero(calls: list[str]) -> None:
    sets = {**SETS, "a again": otdd.from_arrays(SETS["a"].x.clone(), SETS["a"].y)}
    matrix = otdd.pairwise(sets, relative_epsilon=0.1)
    assert calls == ["self"] * 3 + ["pair"] * 3
    assert matrix.values[0, 3] == 0.0
    assert matrix.values[1, 3] == matrix.values[0, 1]
    assert matrix.converged


def test_order_of_the_sets_does_not_matter_to_the_last_bit() -> None:
    matrix = otdd.pairwise(SETS, relative_epsilon=0.1)
    turned = otdd.pairwise(dict(reversed(SETS.items())), relative_epsilon=0.1)
    assert torch.equal(turned.values.flip(0, 1), matrix.values)
    table, other = matrix.certificates[0, 1]["label_table"], turned.certificates[1, 2]["label_table"]
    assert np.allclose(np.array(table), np.array(other).T)


def test_a_second_run_computes_nothing(tmp_path: Path, calls: list[str]) -> None:
    first = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    assert (first.computed, first.reused, len(calls)) == (6, 0, 6)
    calls.clear()
    second = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    assert (second.computed, second.reused, calls) == (0, 6, [])
    assert torch.equal(first.values, second.values)
    changed = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1, tol=1e-5)
    assert (changed.computed, changed.reused) == (6, 0)


def test_a_new_set_costs_its_own_row_and_keeps_the_epsilon(tmp_path: Path) -> None:
    first = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    grown = otdd.pairwise({**SETS, "d": blobs(20, 2, 7, 3.0)}, folder=tmp_path, relative_epsilon=0.1)
    assert (grown.computed, grown.reused) == (4, 6)
    assert grown.epsilon == first.epsilon
    assert torch.equal(grown.values[:3, :3], first.values)
    assert any("is kept from the first run" in note for note in grown.notes)


def test_killed_after_three_items_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    """C25: an interrupt half way leaves what is finished; the second run computes the rest alone."""
    original = Worker.terms

    def interrupted(self, *arguments):
        if calls.count("pair") == 1:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "terms", interrupted)
        patch.setattr("otdd_flash.problems.batch._SCORES_ON_CPU", 1)
        with pytest.raises(KeyboardInterrupt):
            otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    assert calls == ["self"] * 3 + ["pair"]
    matrix = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    assert (matrix.computed, matrix.reused) == (2, 4)
    torch.testing.assert_close(matrix.values, otdd.pairwise(SETS, relative_epsilon=0.1).values, rtol=1e-5, atol=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_set_and_a_bad_pair_leave_the_rest(tmp_path: Path, workers: int) -> None:
    """C25: failures are recorded and listed, everything else is there; mended, only the rest is computed."""
    sets = {**SETS, "gone": broken, "wide": of_another_width}
    with pytest.warns(UserWarning, match="items of the matrix failed"):
        matrix = otdd.pairwise(sets, folder=tmp_path, workers=workers, relative_epsilon=0.1)
    failed = {failure.names: failure for failure in matrix.failures}
    assert set(failed) == {("gone",), ("a", "wide"), ("b", "wide"), ("c", "wide")}
    assert (failed["gone",].error, failed["gone",].message) == ("OSError", "the disk is gone")
    assert "different feature widths" in failed["a", "wide"].message
    whole = otdd.pairwise(SETS, relative_epsilon=0.1)
    torch.testing.assert_close(matrix.values[:3, :3], whole.values, rtol=1e-5, atol=0)
    assert not matrix.complete
    assert len(matrix.missing) == 7
    assert matrix.finished().names == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"7 pairs are missing \(a x gone, a x wide"):
        matrix.matrix()
    again = collect(tmp_path)
    assert again.failures == matrix.failures
    mended = otdd.pairwise({**SETS, "gone": blobs(20, 2, 5)}, folder=tmp_path, relative_epsilon=0.1)
    assert (mended.computed, mended.reused, mended.failures) == (4, 6, ())


def test_two_workers_of_two_threads_change_nothing(tmp_path: Path) -> None:
    """C27: the same values whichever number of processes and threads, and threads are capped."""
    alone = otdd.pairwise(SETS, relative_epsilon=0.1)
    spread = otdd.pairwise(SETS, relative_epsilon=0.1, workers=2, folder=tmp_path)
    torch.testing.assert_close(spread.values, alone.values, rtol=1e-6, atol=0)
    import joblib

    threads = {json.loads(path.read_text())["threads"] for path in (tmp_path / "pairs").glob("*.json")}
    assert threads == {max(1, joblib.cpu_count() // 2)}


def die() -> otdd.LabeledDataset:
    import os

    os._exit(7)


def test_a_worker_that_dies_takes_its_own_item_only() -> None:
    with pytest.warns(UserWarning, match="failed"):
        matrix = otdd.pairwise({**SETS, "deadly": die}, workers=2, relative_epsilon=0.1)
    (failure,) = matrix.failures
    assert failure.names == ("deadly",)
    assert "the worker process died" in failure.message
    assert matrix.finished().names == ("a", "b", "c")


def test_shards_meet_in_the_folder(tmp_path: Path) -> None:
    whole = otdd.pairwise(SETS, relative_epsilon=0.1)
    done = []
    for i in range(3):
        part = otdd.pairwise(SETS, folder=tmp_path, shard=f"{i}/3", relative_epsilon=0.1)
        done.append((part.computed, part.reused, part.complete))
    assert done == [(2, 0, False), (2, 0, False), (2, 0, True)]
    matrix = collect(tmp_path)
    torch.testing.assert_close(matrix.values, whole.values, rtol=1e-5, atol=0)
    assert matrix.certificates[0, 1]["label_table"] == whole.certificates[0, 1]["label_table"]
    assert otdd.DistanceMatrix.from_folder(tmp_path).names == ("a", "b", "c")


def test_a_damaged_record_is_computed_anew(tmp_path: Path) -> None:
    first = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    path = next((tmp_path / "pairs").glob("*.json"))
    path.write_text('{"dual": 1.')
    with pytest.warns(UserWarning, match="cannot be read"):
        second = otdd.pairwise(SETS, folder=tmp_path, relative_epsilon=0.1)
    assert second.computed == 1
    torch.testing.assert_close(second.values, first.values, rtol=1e-5, atol=0)


def test_not_converged_is_said_and_raised_under_strict(tmp_path: Path) -> None:
    short = {"relative_epsilon": 0.01, "tol": 1e-12, "max_iterations": 1}
    with pytest.warns(NotConvergedWarning, match="3 of 3 pairs are not converged"):
        matrix = otdd.pairwise(SETS, **short)
    assert not matrix.converged
    with pytest.raises(NotConvergedError):
        otdd.pairwise(SETS, **short, strict=True, folder=tmp_path)
    assert len(list((tmp_path / "pairs").glob("*.json"))) == 3


def test_same_seed_draws_the_same_samples() -> None:
    small = otdd.pairwise(SETS, relative_epsilon=0.1, max_samples=12, seed=3)
    alone = otdd.dataset_distance(SETS["a"], SETS["b"], epsilon=small.epsilon, max_samples=12, seed=3)
    assert float(small.values[0, 1]) == pytest.approx(alone.value, abs=alone.error + float(small.errors[0, 1]))
    assert [s["n"] for s in small.sets] == [12, 12, 12]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shard": "2/2", "folder": "x"}, r"shard must be 'i/N' with 0 <= i < N, as '0/4', got '2/2'"),
        ({"shard": "0/2"}, "shard needs folder"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"label_distance": torch.zeros(3, 3)}, "a given table belongs to one pair"),
        ({"label_distance": squared}, "needs an absolute epsilon"),
        ({"label_distance": squared, "epsilon": 1.0, "folder": "x"}, "has no content key"),
        ({"reach_x": 1.0}, "reach_x and reach_y must be equal"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        otdd.pairwise(SETS, **arguments)


def test_sets_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="pairwise has no argument espilon"):
        otdd.pairwise(SETS, espilon=0.1)
    with pytest.raises(ValueError, match=r"names repeat: \['blobs 0'\]; give a mapping"):
        otdd.pairwise([SETS["a"], SETS["a"]])
    with pytest.raises(TypeError, match="a loader needs a name"):
        otdd.pairwise([broken, broken])
    with pytest.raises(TypeError, match="got int"):
        otdd.pairwise([1, 2])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_errors_name_the_devices_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """C24."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"torch sees no CUDA device \(CUDA_VISIBLE_DEVICES=''\)"):
        otdd.pairwise(SETS, device="cuda")


def test_eight_workers_spread_over_four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """C24: in turns over all that torch sees; one GPU named is that one."""
    from otdd_flash.matrix.pool import resolve_devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    assert resolve_devices("cuda", 8) == [f"cuda:{i}" for i in (0, 1, 2, 3)] * 2
    assert resolve_devices("cuda", None) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert resolve_devices("cuda:2", 2) == ["cuda:2", "cuda:2"]
    with pytest.raises(ValueError, match=r"torch sees cuda:0 \(GPU 0\), .*cuda:3 \(GPU 3\)"):
        resolve_devices("cuda:4", 1)


def test_each_item_runs_with_its_workers_gpu_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels are launched on the current device, and a loader's "cuda" is the current one."""
    from otdd_flash.matrix import pool
    from otdd_flash.matrix.store import Store

    current: list[str] = []

    @contextmanager
    def fake(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(torch.cuda, "device", fake)
    monkeypatch.setattr(Worker, "summarise", lambda self, *arguments: seen.append(tuple(current)) or [pool.Result()])
    for device in ("cuda:3", "cpu", None, "cuda:0"):
        worker = Worker([], otdd.DistanceOptions(), Store(tmp_path), device=device)
        pool._call(worker, pool.Batch("summarise", None, (pool.Item(("a",), 0),)))
    assert seen == [("cuda:3",), (), (), ("cuda:0",)]
    assert current == []


def test_workers_of_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight workers on four GPUs are two on each: each may store half of what one alone would."""
    from otdd_flash.matrix.api import _build_worker
    from otdd_flash.matrix.store import Store

    properties = SimpleNamespace(total_memory=100_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    devices = [f"cuda:{i}" for i in (0, 1, 2, 3)] * 2
    budgets = [_build_worker([], otdd.DistanceOptions(), Store(tmp_path), devices, slot) for slot in range(8)]
    assert [worker.device for worker in budgets] == devices
    assert {worker.options.memory_budget for worker in budgets} == {30_000}
    alone = _build_worker([], otdd.DistanceOptions(), Store(tmp_path), devices[:4], 2)
    assert alone.options.memory_budget is None, "it asks its own free memory"


def test_loaders_that_give_other_data_each_time_are_refused() -> None:
    seeds = iter(range(100))
    with pytest.warns(UserWarning, match="different content"):
        matrix = otdd.pairwise({"a": SETS["a"], "b": lambda: blobs(20, 2, next(seeds))}, relative_epsilon=0.1)
    assert math.isnan(matrix.values[0, 1])


def test_names_for_load_and_partials() -> None:
    matrix = otdd.pairwise(
        {"iris": "iris", "part": partial(otdd.load, "iris", classes=[0, 1])}, relative_epsilon=0.1, max_samples=60
    )
    assert matrix.converged
    assert matrix.sets[1]["classes"] == ["setosa", "versicolor"]


@pytest.mark.data
def test_digits_are_nearer_to_mnist_than_clothes_are(data_root: Path) -> None:
    names = ["mnist", "usps", "digits", "fashion_mnist"]
    sets = {name: partial(otdd.load, name, max_samples=500, resize=(28, 28), data_root=data_root) for name in names}
    matrix = otdd.pairwise(sets)
    assert matrix.converged
    assert matrix.distance("mnist", "usps") < matrix.distance("mnist", "fashion_mnist")
    assert matrix.distance("mnist", "digits") < matrix.distance("mnist", "fashion_mnist")


def test_a_reach_beyond_all_costs_is_none() -> None:
    """As in a single distance: only rounding would tell such a penalty from a prescribed marginal."""
    far, none = (otdd.pairwise(SETS, relative_epsilon=0.1, reach=reach) for reach in (1e9, None))
    assert far.converged
    torch.testing.assert_close(far.values, none.values, rtol=1e-12, atol=1e-12)
