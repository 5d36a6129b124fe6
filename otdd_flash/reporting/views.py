"""What the sections show of a result, whether it is at hand or comes from the files of an earlier run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from otdd_flash.labels import LabelDistances
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.distance import DistanceResult
    from otdd_flash.selection.values import SampleValues


@dataclass(frozen=True, eq=False)
class DistanceView:
    """One distance.

    Args:
        record: :meth:`otdd_flash.DistanceResult.to_dict`.
        labels: class-to-class distances, where there are any.
        coupling: ``(c, c')`` mass between classes; ``None`` where it is not known.
    """

    record: dict[str, Any]
    labels: LabelDistances | None = None
    coupling: Tensor | None = None

    @classmethod
    def of(cls, result: DistanceResult) -> DistanceView:
        """Of a result at hand; one pass over the plan gives the coupling."""
        return cls(result.to_dict(), result.label_distances, _coupling(result))

    @property
    def class_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of source and target."""
        if self.labels is not None:
            return self.labels.source_names, self.labels.target_names
        source, target = self.record["class_counts"]
        return tuple(source), tuple(target)


@dataclass(frozen=True, eq=False)
class ValuesView:
    """Values of the samples of a pool.

    Args:
        columns: :meth:`otdd_flash.selection.values.SampleValues.columns`: a row a sample, worst first.
        by_class: mean value of each class, by part.
        distance: the distance that the values are derivatives of.
        pictures: ``x`` and ``image_shape`` of the pool, where its rows are pictures.
    """

    columns: dict[str, list[Any]]
    by_class: dict[str, dict[str, float]]
    distance: DistanceView
    pictures: tuple[Tensor, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, found: SampleValues, pictures: LabeledDataset | None = None) -> ValuesView:
        """Of values at hand.

        Args:
            found: the values.
            pictures: the pool before it was embedded; default the pool itself.

        Raises:
            ValueError: pictures of another number of samples.
        """
        shown = found.pool if pictures is None else pictures
        if shown.n != found.pool.n:
            raise ValueError(f"pictures has {shown.n} samples, the valued pool {found.pool.n}: they must be row by row")
        by_class = {part: found.by_class(part) for part in found.gradients}  # type: ignore[arg-type]
        held = None if shown.image_shape is None else (shown.x, shown.image_shape)
        return cls(found.columns(), by_class, DistanceView.of(found.result), held)


def _coupling(result: DistanceResult) -> Tensor | None:
    """Mass between classes; a cost without a label part does not know them."""
    plan = result.plan
    source, target = (plan.cost.clouds[i].labels for i in plan.problem)
    if source is None or target is None or result.label_distances is None:
        return None
    return plan.class_coupling(source, target - len(result.label_distances.source_names)).cpu()
