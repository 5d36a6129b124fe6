"""The distance matrix as a result: values with certificates, records, and ways on from there."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_path, shown
from otdd_flash.errors import optional_import
from otdd_flash.matrix import geometry
from otdd_flash.matrix.screening import MatrixScreening, estimates
from otdd_flash.torch_mode import plain_torch_methods

FORMAT = "otdd-flash distance matrix 1"
Metric = Literal["root", "value"]


@dataclass(frozen=True)
class Failure:
    """A set or a pair that could not be done, and why.

    Args:
        names: one of a set, two of a pair.
        error: class of the exception.
        message: its text.
    """

    names: tuple[str, ...]
    error: str
    message: str


@plain_torch_methods
@dataclass(frozen=True, eq=False)
class DistanceMatrix:
    """Distances between ``k`` labelled data sets.

    Args:
        names: of the sets, in order.
        values: ``(k, k)`` float64 squared divergences in units of the cost, NaN where a pair failed, is not done or
            was screened out.
        errors: ``(k, k)`` stated absolute errors of ``values``.
        certificates: by pair ``(i, j)``, ``i < j``: value, root, convergence, marginal error, gap, mean cost, the three
            transport values, seconds, class-to-class table.
        failures: sets and pairs that could not be done.
        sets: size, classes and fingerprint of each set, ``None`` where it could not be loaded.
        epsilon: of every transport problem, in units of the cost.
        label_epsilon: of every class-to-class problem, where there were any.
        reference_cost: what a relative epsilon was a fraction of.
        options: of the distances.
        notes: remarks.
        computed: work items done by this call.
        reused: work items found finished.
        seconds: wall time of this call.
        screening: cheap distances of all pairs, where only the nearest neighbours were to have the full one.
    """

    names: tuple[str, ...]
    values: Tensor
    errors: Tensor
    certificates: dict[tuple[int, int], dict[str, Any]] = field(repr=False)
    failures: tuple[Failure, ...]
    sets: tuple[dict[str, Any] | None, ...] = field(repr=False)
    epsilon: float
    label_epsilon: float | None
    reference_cost: float | None
    options: dict[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    computed: int = 0
    reused: int = 0
    seconds: float = 0.0
    screening: MatrixScreening | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def roots(self) -> Tensor:
        """``(k, k)`` square roots of the values, those of rounding's negative ones zero."""
        return self.values.clamp_min(0).sqrt()

    @property
    def converged(self) -> bool:
        """Whether every pair that was to be done is there and converged, and none is an estimate."""
        return (
            self.done
            and not bool(self.estimated.any())
            and all(certificate["converged"] for certificate in self.certificates.values())
        )

    @property
    def complete(self) -> bool:
        """Whether every pair has a value."""
        return not bool(self.values.isnan().any())

    @property
    def done(self) -> bool:
        """Whether every pair that was to have a value has one; others than :attr:`complete` only after a screen."""
        return not bool(self._gaps.any())

    @property
    def estimated(self) -> Tensor:
        """``(k, k)`` bool: values that :meth:`filled` took from the screen."""
        if self.screening is None:
            return torch.zeros_like(self.values, dtype=torch.bool)
        return ~self.screening.refined & ~self.values.isnan()

    def filled(self) -> DistanceMatrix:
        """The matrix with scaled screening distances where pairs were screened out: for maps and trees.

        They are on the scale of the refined pairs (``screening.factor``), have no certificate and no error, and are
        marked in :attr:`estimated`.

        Raises:
            ValueError: nothing was screened, or no pair gives a scale.
        """
        if self.screening is None:
            raise ValueError("nothing was screened out: give pairwise a screen")
        note = f"pairs that were screened out are {self.screening.factor or 0:.6g} times their screening distance"
        return replace(self, values=estimates(self.values, self.screening), notes=(*self.notes, note))

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Pairs without a value; they failed, touch a failed set, or were left to another shard."""
        i, j = torch.triu_indices(len(self), len(self), offset=1)
        gaps = self._gaps[i, j]
        return tuple((self.names[p], self.names[q]) for p, q in zip(i[gaps].tolist(), j[gaps].tolist(), strict=True))

    def distance(self, first: str, second: str) -> float:
        """The root between two sets, by name.

        Raises:
            KeyError: a name that is not in the matrix.
        """
        for argument, name in (("first", first), ("second", second)):
            if not isinstance(name, str) or name not in self.names:
                raise KeyError(f"{argument}={shown(name)} is not in the matrix; it has {list(self.names)}")
        return float(self.roots[self.names.index(first), self.names.index(second)])

    def matrix(self, metric: Metric = "root") -> Any:
        """``(k, k)`` numpy array, symmetric, as scikit-learn takes it under ``metric="precomputed"``.

        Args:
            metric: ``root`` for distances, ``value`` for squared ones. Both have a zero diagonal and no negative entry
                where the divergence is debiased.

        Raises:
            ValueError: another metric, or pairs that are missing.
        """
        check_choice("metric", metric, get_args(Metric))
        return self._whole(metric).numpy()

    def finished(self) -> DistanceMatrix:
        """The part without gaps: sets are left out, those with most missing pairs first, until none is missing.

        Of a screened matrix with the estimates of :meth:`filled`.
        """
        kept = list(range(len(self)))
        scaled = self.screening is not None and self.screening.factor is not None
        gaps = self._gaps if scaled else self.values.isnan()
        while kept and bool(gaps[kept][:, kept].any()):
            kept.pop(int(gaps[kept][:, kept].sum(1).argmax()))
        part = self.subset([self.names[i] for i in kept])
        return part.filled() if scaled and not part.complete else part

    def subset(self, names: list[str] | tuple[str, ...]) -> DistanceMatrix:
        """The matrix of these sets, in this order.

        Raises:
            KeyError: a name that is not in the matrix.
        """
        if not isinstance(names, list | tuple):
            raise TypeError(f"names must be a list of names, got {shown(names)}")
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise KeyError(f"names {unknown} are not in the matrix; it has {list(self.names)}")
        index = [self.names.index(name) for name in names]
        pairs = {
            (p, q): self.certificates[min(i, j), max(i, j)]
            for p, i in enumerate(index)
            for q, j in enumerate(index)
            if p < q and (min(i, j), max(i, j)) in self.certificates
        }
        return replace(
            self, names=tuple(names), values=self.values[index][:, index], errors=self.errors[index][:, index],
            certificates=pairs, sets=tuple(self.sets[i] for i in index),
            failures=tuple(failure for failure in self.failures if set(failure.names) <= set(names)),
            screening=None if self.screening is None else self.screening.subset(index),
        )  # fmt: skip

    @property
    def negative_share(self) -> float:
        """How far the roots are from Euclidean distances: share of negative eigenvalues of ``-J values J / 2``."""
        return geometry.negative_share(self._whole("value"))

    def dendrogram(self, method: str = "average") -> tuple[Any, list[int]]:
        """Scipy linkage of the roots and the order of the leaves; see :func:`otdd_flash.plots.dendrogram`."""
        return geometry.linkage(self._whole("root"), method)

    def mds(self, seed: int = 0, dimensions: int = 2) -> geometry.Map:
        """A map on which Euclidean distances are near the roots, with its stress."""
        return geometry.mds_map(self._whole("root"), seed=seed, dimensions=dimensions)

    def tsne(self, seed: int = 0, perplexity: float | None = None) -> geometry.Map:
        """A map that keeps neighbourhoods; for many sets."""
        return geometry.tsne_map(self._whole("root"), seed=seed, perplexity=perplexity)

    def to_dict(self) -> dict[str, Any]:
        """Everything in JSON's own types; a missing number is ``None``."""
        return {
            "format": FORMAT, "names": list(self.names), "values": _plain(self.values), "roots": _plain(self.roots),
            "errors": _plain(self.errors), "converged": self.converged, "complete": self.complete, "done": self.done,
            "negative_share": self.negative_share if self.complete else None, "epsilon": self.epsilon,
            "label_epsilon": self.label_epsilon, "reference_cost": self.reference_cost,
            "pairs": [
                {"source": self.names[i], "target": self.names[j], **certificate}
                for (i, j), certificate in self.certificates.items()
            ],
            "failures": [{**vars(failure), "names": list(failure.names)} for failure in self.failures],
            "sets": list(self.sets), "options": self.options, "notes": list(self.notes), "computed": self.computed,
            "reused": self.reused, "seconds": self.seconds,
            "screening": None if self.screening is None else self.screening.to_dict(),
        }  # fmt: skip

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write :meth:`to_dict`."""
        check_path("path", path)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        return path

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write one row a pair (source, target, value, root, error, certificate); the rest as metadata ``otdd``.

        Of a screened matrix every pair has its ``screened`` distance, those without the full one have nothing else.
        """
        check_path("path", path)
        arrow = optional_import("pyarrow", needed_for="writing Parquet", extra="dist")
        parquet = optional_import("pyarrow.parquet", needed_for="writing Parquet", extra="dist")
        record = self.to_dict()
        skip = ("notes", "versions", "label_table")
        rows = [{key: value for key, value in pair.items() if key not in skip} for pair in record.pop("pairs")]
        columns = {key: [row[key] for row in rows] for key in (rows[0] if rows else ("source", "target", "value"))}
        table = arrow.table(columns)
        if self.screening is not None:
            table = self._with_screened(arrow, table)
            record["screening"].pop("values")
        table = table.replace_schema_metadata({"otdd": json.dumps(record, allow_nan=False)})
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)
        return path

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> DistanceMatrix:
        """What is finished in the folder of a :func:`~otdd_flash.pairwise` run; the same as ``collect``."""
        from otdd_flash.matrix.api import collect

        return collect(folder)

    def _with_screened(self, arrow: Any, table: Any) -> Any:
        """The table of certified pairs with a column of screening distances, and the other pairs below."""
        assert self.screening is not None
        quick = self.screening.values
        table = table.append_column("screened", [[float(quick[pair]) for pair in self.certificates]])
        rest = ~self.screening.refined
        for pair in self.certificates:
            rest[pair] = False
        i, j = rest.triu(1).nonzero(as_tuple=True)
        names = arrow.array(self.names)
        columns = {"source": names.take(arrow.array(i.numpy())), "target": names.take(arrow.array(j.numpy()))}
        below = arrow.table({**columns, "screened": quick[i, j].numpy()})
        return arrow.concat_tables([table, below], promote_options="default")

    @property
    def _gaps(self) -> Tensor:
        """``(k, k)`` bool: pairs without a value that were to have one."""
        gaps = self.values.isnan()
        return gaps if self.screening is None else gaps & self.screening.refined

    def _whole(self, metric: Metric) -> Tensor:
        """Values or roots, or an error that says which pairs are missing."""
        if not self.done:
            pairs = [f"{first} x {second}" for first, second in self.missing]
            raise ValueError(
                f"{len(pairs)} pairs are missing ({', '.join(pairs[:5])}{', ...' if len(pairs) > 5 else ''}): compute "
                "them, or take finished() for the sets without gaps"
            )
        if not self.complete:
            raise ValueError("pairs were screened out: take filled() for estimates in their place")
        return self.roots if metric == "root" else self.values.clamp_min(0) if self.options["debiased"] else self.values


def _plain(table: Tensor) -> list[list[float | None]]:
    return [[value if math.isfinite(value) else None for value in row] for row in table.tolist()]
