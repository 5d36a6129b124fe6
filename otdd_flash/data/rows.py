"""Builds data sets from sources of rows: the labels settle which rows are kept, and only these are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import check_count, check_type
from otdd_flash.data.arrow import to_frame
from otdd_flash.data.classes import Classes, encode_labels, name_classes, plain
from otdd_flash.data.decoding import SampleError
from otdd_flash.data.matrix import Matrix, to_matrix
from otdd_flash.data.unembedded import TableDataset, TextDataset, Texts
from otdd_flash.errors import warn
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset


@dataclass(frozen=True)
class Rows:
    """A source whose labels are at hand and whose features are fetched for the chosen rows alone."""

    labels: Any  # n, of any kind that encode_labels takes
    fetch: Callable[[np.ndarray], Any]  # int64 positions (ascending) to the features of these rows, a Matrix, or Texts
    name: str = "arrays"
    class_names: Sequence[str] | Mapping | None = None  # a sequence is indexed by label
    weights: Any = None  # n non-negative numbers
    image_shape: Sequence[int] | None = None  # where fetch gives flattened images
    positions: np.ndarray | None = None  # (n,) ids of the rows in the original source; None for 0..n-1
    origins: Sequence[str] | None = None  # what messages call each row, a file for instance; None for its id
    dropped: Mapping[str, int] = field(default_factory=dict)  # rows that the source itself left out, by reason
    notes: tuple[str, ...] = ()
    columns: Callable[[np.ndarray], Any] | None = None  # positions to an Arrow table, where the features are columns


@dataclass(frozen=True)
class Draw:
    """Which rows of a source are wanted."""

    max_samples: int | None = None  # drawn uniformly without replacement; None for all
    seed: int = 0
    classes: Sequence[Hashable] | None = None  # keep these alone, given as label values or as names
    min_class_size: int | None = None  # drop classes with fewer rows
    limit: int | None = None  # rows of a stream that are read; None for STREAM_LIMIT

    def __post_init__(self) -> None:
        for name in ("max_samples", "min_class_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
                raise ValueError(f"{name} must be a positive integer or None, got {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise ValueError(f"seed must be an integer, got {self.seed!r}")
        check_count("seed", self.seed, least=-(2**63))
        if self.classes is not None:
            object.__setattr__(self, "classes", _asked_classes(self.classes))


def _asked_classes(classes: Any) -> list[Hashable]:
    """The classes to keep; a single name stands for itself."""
    if isinstance(classes, str):
        return [classes]
    try:
        asked = [plain(item) for item in classes]
        hash(tuple(asked))
    except TypeError:
        raise ValueError(
            f"classes must be a list of labels or names to keep, or None for all, got {classes!r}"
        ) from None
    if not asked:
        raise ValueError("classes is empty: name the classes to keep, or None for all")
    return asked


def build(rows: Rows, draw: Draw | None = None) -> LabeledDataset | TextDataset:
    """The data set of the wanted rows, by default of all; where their features are strings, a :class:`TextDataset`.

    Raises:
        ValueError: bad labels, weights or features, or no row is left.
    """
    index, samples = _chosen(rows, draw or Draw())
    ids = samples["ids"].tolist()
    try:
        features = rows.fetch(index)
    except SampleError as error:
        row = error.position
        where = f"row {ids[row]}" if rows.origins is None else rows.origins[index[row]]
        raise ValueError(f"{rows.name}: {error.told(where)}") from error
    if isinstance(features, Texts):
        bad = [i for i, text in enumerate(features) if not isinstance(text, str)]
        if bad:
            raise ValueError(f"{rows.name}: {len(bad)} texts are missing, the first in row {ids[bad[0]]}; drop them")
        return TextDataset(texts=tuple(features), **samples)
    matrix = features if isinstance(features, Matrix) else to_matrix(features, rows.image_shape)
    _check_features(matrix.x, ids, rows.name)
    moved = {key: value.to(matrix.x.device) for key, value in samples.items() if isinstance(value, Tensor)}
    notes = tuple(dict.fromkeys(samples["notes"] + matrix.notes))
    form = {"levels": matrix.levels, "image_shape": matrix.image_shape, "notes": notes}
    return LabeledDataset(x=matrix.x, **{**samples, **moved, **form})


def build_table(rows: Rows, draw: Draw) -> LabeledDataset | TextDataset | TableDataset:
    """The data set of the wanted rows with columns of any kind as they are; :func:`build` where there are none."""
    if rows.columns is None:
        return build(rows, draw)
    index, samples = _chosen(rows, draw)
    return TableDataset(frame=to_frame(rows.columns(index)), **samples)


def _chosen(rows: Rows, draw: Draw) -> tuple[np.ndarray, dict[str, Any]]:
    """The positions of the kept rows, settled from labels and weights alone, and what they have besides features."""
    classes = encode_labels(rows.labels)
    n = len(classes.ids)
    if n == 0:
        raise ValueError(f"{rows.name}: zero rows; a data set needs at least one labelled sample")
    names = name_classes(classes.values, rows.class_names)
    weights, notes = _checked_weights(rows.weights, n)
    keep = _Keeper(n, rows.dropped)
    keep.drop(classes.ids < 0, "unlabelled")
    if weights is not None:
        keep.drop(weights == 0, "zero weight")
    if draw.classes is not None:
        wanted = _wanted(classes, names, draw.classes, rows.name)
        keep.mask &= np.isin(classes.ids, wanted)
        notes = (*notes, f"only the classes {[names[i] for i in wanted]}")
    if draw.min_class_size is not None:
        keep.drop_small(classes.ids, names, draw.min_class_size)
    index = keep.index(rows.name)
    if weights is not None:
        keep.drop(_normalised(weights, index) == 0, "weight underflows")
        index = keep.index(rows.name)
    if draw.max_samples is not None and draw.max_samples < len(index):
        notes = (*notes, _draw_note(draw.max_samples, len(index), draw.seed))
        index = index[drawn(classes.ids[index], draw.max_samples, draw.seed)]
    present, y = np.unique(classes.ids[index], return_inverse=True)
    gone = ", ".join(f"{reason} {count}" for reason, count in keep.dropped.items())
    return index, {
        "name": rows.name,
        "y": torch.as_tensor(y, dtype=torch.int64),
        "class_names": tuple(names[i] for i in present),
        "weights": None if weights is None else torch.as_tensor(_normalised(weights, index)[index]),
        "ids": torch.as_tensor(index if rows.positions is None else rows.positions[index], dtype=torch.int64),
        "dropped": keep.dropped,
        "notes": (*rows.notes, *notes, *([f"rows left out: {gone}"] if gone else [])),
    }


def drawn(ids: np.ndarray, size: int, seed: int) -> np.ndarray:
    """``size`` positions, ascending, drawn uniformly without replacement (not stratified by class).

    The draw is a function of the labels in their order (not of how the classes are named) and of ``seed``: the same
    data gives the same rows whichever way it came in and on whichever side of a distance it stands, and a smaller draw
    is part of a larger one.
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    digest = hashlib.blake2b(rank[inverse].astype("<i8").tobytes(), digest_size=16, key=str(int(seed)).encode())
    words = np.frombuffer(digest.digest(), dtype="<u4")
    # RandomState's stream is frozen for good, unlike that of numpy's or torch's generators
    order = np.random.RandomState(words).random_sample(len(ids)).argsort(kind="stable")
    return np.sort(order[:size])


@plain_torch
def subsample(dataset: LabeledDataset, max_samples: int | None, seed: int = 0) -> LabeledDataset:
    """At most ``max_samples`` rows of ``dataset``, in their order.

    They are drawn uniformly without replacement, as a function of the labels in their order and of ``seed``: the same
    data gives the same rows, and a smaller draw is part of a larger one.

    Args:
        dataset: to draw from.
        max_samples: ``None`` or a number not under ``len(dataset)`` gives the data set back.
        seed: of the draw.
    """
    check_type("dataset", dataset, (LabeledDataset, TextDataset, TableDataset))
    Draw(max_samples, seed)  # checks both
    if max_samples is None or max_samples >= dataset.n:
        return dataset
    part = dataset.subset(torch.as_tensor(drawn(dataset.y.cpu().numpy(), max_samples, seed)))
    return replace(part, notes=(*part.notes, _draw_note(part.n, dataset.n, seed)))


def _checked_weights(weights: Any, n: int) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """``(n,)`` float64 weights as given, and a note where they do not sum to one."""
    if weights is None:
        return None, ()
    if isinstance(weights, np.ma.MaskedArray):
        weights = np.ma.filled(weights.astype(float), np.nan)
    try:
        array = weights.detach().cpu().double().numpy() if isinstance(weights, Tensor) else np.asarray(weights, float)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"weights must be {n} numbers: {error}") from error
    if array.shape != (n,):
        raise ValueError(f"weights has shape {array.shape}, but there are {n} samples: it must be ({n},)")
    bad = np.flatnonzero(~np.isfinite(array) | (array < 0))
    if bad.size:
        raise ValueError(
            f"weights must be finite and not negative: {bad.size} are not, the first is {array[bad[0]]} in row {bad[0]}"
        )
    with np.errstate(over="ignore"):
        total = array.sum()
    if total == 0:
        raise ValueError("weights are all zero; leave weights out for uniform ones")
    if abs(total - 1) <= 1e-9:
        return array, ()
    told = f"{total:.6g}" if np.isfinite(total) else "more than float64 holds"
    return array, (f"weights summed to {told} and were divided by it",)


def _normalised(weights: np.ndarray, index: np.ndarray) -> np.ndarray:
    """``(n,)`` weights, those of the rows ``index`` divided by their sum, others as one (they are left out)."""
    kept = weights[index]
    scaled = np.ldexp(kept, -int(np.frexp(kept.max())[1]))  # by a power of two: no rounding, and the sum is finite
    out = np.ones_like(weights)
    out[index] = scaled / scaled.sum()
    return out


def _check_features(x: Tensor, ids: Sequence[int], name: str) -> None:
    """Refuse features without columns, for another number of rows, or with NaN or infinite values."""
    if len(x) != len(ids):
        raise ValueError(f"{name}: {len(ids)} rows were chosen, but features came for {len(x)}")
    if x.shape[1] == 0:
        raise ValueError(f"{name}: X has no columns, got shape {tuple(x.shape)}")
    x = x.detach()
    if torch.isfinite(x.sum()):  # a finite sum has finite terms, at the cost of one pass and no mask
        return
    bad = torch.nonzero(~torch.isfinite(x).all(dim=1)).flatten().tolist()
    if bad:
        raise ValueError(
            f"{name}: X has {len(bad)} rows with NaN or infinite features, the first is row {ids[bad[0]]}; drop or "
            "impute them"
        )


class _Keeper:
    """The rows still kept, and the count of those dropped by reason."""

    def __init__(self, n: int, dropped: Mapping[str, int]) -> None:
        self.mask = np.ones(n, dtype=bool)
        self.dropped = dict(dropped)

    def drop(self, gone: np.ndarray, reason: str) -> None:
        count = int((self.mask & gone).sum())
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            self.mask &= ~gone

    def drop_small(self, ids: np.ndarray, names: Sequence[str], least: int) -> None:
        counts = np.bincount(ids[self.mask], minlength=len(names))
        small = [i for i in range(len(names)) if 0 < counts[i] < least]
        if not small:
            return
        gone = np.isin(ids, small)
        warn(
            f"min_class_size={least} drops {len(small)} classes with {int(counts[small].sum())} samples: "
            f"{[names[i] for i in small][:10]}"
        )
        self.drop(gone, "class under min_class_size")

    def index(self, name: str) -> np.ndarray:
        index = np.flatnonzero(self.mask)
        if not index.size:
            raise ValueError(f"{name}: no sample is left of {len(self.mask)}; dropped: {self.dropped or 'none'}")
        return index


def _wanted(classes: Classes, names: Sequence[str], asked: Sequence[Hashable], source: str) -> list[int]:
    """Ids of the asked classes, found by label value first, then by name."""
    by_value = {value: i for i, value in enumerate(classes.values)}
    by_name = {name: i for i, name in enumerate(names)}
    unknown = [item for item in asked if item not in by_value and str(item) not in by_name]
    if unknown:
        raise ValueError(
            f"classes={unknown!r} are not in {source}; it has the labels {list(by_value)[:20]}, "
            f"named {list(by_name)[:20]}"
        )
    return sorted({by_value[item] if item in by_value else by_name[str(item)] for item in asked})


def _draw_note(size: int, n: int, seed: int) -> str:
    """What was drawn, for the notes."""
    return f"{size} of {n} rows drawn uniformly without replacement (seed {seed})"
