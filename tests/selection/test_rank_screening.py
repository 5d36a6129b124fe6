"""rank with a screen: same numbers as without, near ties at the cut are kept, nothing is held in memory."""

from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest

import otdd_flash as otdd
from otdd_flash import Screen
from otdd_flash.screening.cut import cut, rank_correlation

QUICK = {"label_distance": "means", "relative_epsilon": 0.1, "bootstrap": 0}


def blobs(seed: int, shift: float = 0.0, n: int = 40, d: int = 3) -> otdd.LabeledDataset:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return otdd.from_arrays(rng.normal(size=(n, d)) + 3 * y[:, None] + shift, y, name=f"blobs {seed}")


SHIFTS = (2.0, 0.1, 3.0, 0.5, 1.0, 4.0, 1.5, 5.0)
TARGET = blobs(99)
SETS = {f"shift {shift}": blobs(i, shift) for i, shift in enumerate(SHIFTS)}


@pytest.mark.parametrize("method", ["sliced", "moments"])
def test_refined_values_are_those_of_the_whole_ranking(method: str) -> None:
    whole = otdd.rank(SETS, TARGET, **QUICK)
    screened = otdd.rank(SETS, TARGET, screen=Screen(keep=3, margin=0.0, method=method), **QUICK)
    assert screened.names == whole.names[:3] == ("shift 0.1", "shift 0.5", "shift 1.0")
    assert screened.epsilon == whole.epsilon
    for item in screened.candidates:
        assert item.value == pytest.approx(whole[item.name].value, abs=item.error)
        assert item.screened == screened.screening.values[item.name]
    assert screened.order == whole.names, "the shifts are far enough apart for the screen"
    assert screened.screening.refined == screened.names
    assert screened.screening.rank_correlation == pytest.approx(1.0)
    assert whole.screening is None
    assert whole.candidates[0].screened is None
    record = json.loads(json.dumps(screened.to_dict(), allow_nan=False))["screening"]
    assert list(record["values"]) == list(screened.order)
    assert (record["screen"]["keep"], record["refined"]) == (3, list(screened.names))
    with pytest.raises(KeyError, match=r"'shift 5\.0' was screened out: raise screen\.keep"):
        screened["shift 5.0"]


def test_screening_values_are_sliced_distances_and_do_not_depend_on_the_others() -> None:
    from otdd_flash.screening import Slices

    screen = Screen(keep=1, margin=0.0, projections=50, quantiles=40)
    both = otdd.rank(SETS, TARGET, screen=screen, **QUICK).screening.values
    alone = otdd.rank({"shift 2.0": SETS["shift 2.0"]}, TARGET, screen=screen, **QUICK).screening.values
    assert both["shift 2.0"] == pytest.approx(alone["shift 2.0"], rel=1e-12)
    slices = Slices.draw([TARGET], projections=50)
    direct = otdd.sliced_distance(TARGET, SETS["shift 2.0"], slices=slices, quantiles=40)
    assert alone["shift 2.0"] == pytest.approx(direct, rel=1e-9)


def test_near_ties_at_the_cut_are_refined_too() -> None:
    sets = {"near": blobs(1, 0.2), "tie": blobs(2, 2.0), "other tie": blobs(2, 2.001), "far": blobs(3, 6.0)}
    ranking = otdd.rank(sets, TARGET, screen=Screen(keep=2, margin=0.05), **QUICK)
    assert set(ranking.names) == {"near", "tie", "other tie"}
    assert (ranking.screening.near_ties, ranking.screening.ties_left) == (1, 0)


def test_cut() -> None:
    assert cut([5.0, 1.0, 3.0, 3.1, 3.2, 9.0], Screen(keep=2, margin=0.1)).kept == (1, 2, 3, 4)
    found = cut([1.0] * 10, Screen(keep=2, margin=0.0))
    assert (found.kept, found.near_ties, found.left) == ((0, 1, 2, 3), 2, 6), "as many again at most"
    assert cut([2.0, 1.0], Screen(keep=20)).kept == (1, 0)
    assert len(cut(list(range(10)), Screen(keep=0.25, margin=0.0)).kept) == 3
    below_zero = cut([-1.0, -0.95, 0.0], Screen(keep=1, margin=0.1))
    assert below_zero.kept == (0, 1)


def test_rank_correlation_averages_ties() -> None:
    scipy = pytest.importorskip("scipy.stats")
    first, second = [1.0, 1.0, 2.0, 5.0, 4.0], [0.0, 1.0, 1.0, 3.0, 9.0]
    assert rank_correlation(first, second) == pytest.approx(scipy.spearmanr(first, second).statistic)
    assert rank_correlation([1.0, 2.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0, 1.0, 1.0], second[:3]) is None


def test_candidates_are_loaded_one_at_a_time_and_the_kept_ones_again() -> None:
    loads: list[str] = []
    alive: list[weakref.ref] = []
    most = 0

    def loader(name: str):
        def load() -> otdd.LabeledDataset:
            nonlocal most
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            loads.append(name)
            made = blobs(SHIFTS.index(float(name.split()[1])), float(name.split()[1]))
            alive.append(weakref.ref(made.x))
            return made

        return load

    ranking = otdd.rank({n: loader(n) for n in SETS}, TARGET, screen=Screen(keep=2, margin=0.0), **QUICK)
    assert loads == [*SETS, *(f"shift {s}" for s in (0.1, 0.5))]
    assert most <= 2, "the one at hand, and the one before it until its name is taken"
    assert ranking.names == ("shift 0.1", "shift 0.5")


def test_failures_do_not_end_the_screen() -> None:
    sets = {**SETS, "wide": blobs(0, d=5), "broken": lambda: 1 / 0}
    with pytest.warns(UserWarning, match="is not ranked"):
        ranking = otdd.rank(sets, TARGET, screen=Screen(keep=2, margin=0.0), **QUICK)
    assert ranking.names == ("shift 0.1", "shift 0.5")
    assert {failure.names[0]: failure.error for failure in ranking.failures} == {
        "wide": "ValueError",
        "broken": "ZeroDivisionError",
    }


def test_a_kept_candidate_that_cannot_be_loaded_again_is_a_failure() -> None:
    """Between the screen and the distance a file may go, or be written anew with other columns."""

    def once(second: otdd.LabeledDataset | None):
        answers = iter([blobs(99), second])

        def load() -> otdd.LabeledDataset:
            found = next(answers)
            if found is None:
                raise OSError("gone")
            return found

        return load

    sets = {"near": once(None), "far": SETS["shift 2.0"]}
    with pytest.raises(ValueError, match="no candidate could be compared: gone"):
        otdd.rank(sets, TARGET, screen=Screen(keep=1, margin=0.0), **QUICK)
    sets = {"near": once(blobs(99, d=5)), "far": SETS["shift 2.0"]}
    with pytest.warns(UserWarning, match="near is not ranked: ValueError: the data sets have different feature widths"):
        found = otdd.rank(sets, TARGET, screen=Screen(keep=2, margin=0.0), **QUICK)
    assert found.names == ("far",)


@pytest.mark.parametrize("screen", [5, {"keep": 3}])
def test_what_is_no_screen_is_refused(screen: object) -> None:
    for call in (lambda: otdd.rank(SETS, TARGET, screen=screen), lambda: otdd.pairwise(SETS, screen=screen)):
        with pytest.raises(TypeError, match=r"screen must be an otdd_flash\.Screen or None, got"):
            call()


def test_without_a_label_part_the_screen_is_blind_to_labels() -> None:
    renamed = otdd.from_arrays(TARGET.x, 1 - TARGET.y)
    mixed = otdd.from_arrays(TARGET.x, np.arange(40) // 2 % 2)
    blind = otdd.rank(
        {"renamed": renamed, "mixed": mixed}, TARGET, screen=Screen(keep=1), **{**QUICK, "label_distance": None}
    )
    assert max(map(abs, blind.screening.values.values())) < 1e-12
    seeing = otdd.rank({"renamed": renamed, "mixed": mixed}, TARGET, screen=Screen(keep=1), **QUICK)
    assert seeing.screening.values["mixed"] > 0.01 > seeing.screening.values["renamed"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": 0}, "keep must be a positive count or a fraction"),
        ({"keep": 1.5}, "keep must be"),
        ({"keep": True}, "keep must be"),
        ({"margin": -0.1}, "margin must be finite and at least 0"),
        ({"method": "exact"}, "method must be one of sliced, moments, got 'exact'"),
        ({"projections": 0}, "projections must be at least 1"),
        ({"projections": 1.5}, "projections must be an integer"),
        ({"quantiles": True}, "quantiles must be an integer"),
        ({"margin": "0.1"}, "margin must be a number, got '0.1'"),
    ],
)
def test_screens_that_do_not_fit(wrong: dict, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"screen.{words}"):
        Screen(**wrong)
