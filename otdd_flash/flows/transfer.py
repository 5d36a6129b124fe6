"""Does a flowed set teach about the target? A nearest-neighbour classifier trained on it, tested on the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from otdd_flash.arguments import check_sides
from otdd_flash.checks import check_count, check_fields, check_type
from otdd_flash.distance import DistanceOptions, dataset_distance
from otdd_flash.flows.callbacks import Callback
from otdd_flash.flows.particles import computable
from otdd_flash.flows.state import FlowState
from otdd_flash.torch_mode import plain_torch
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.flows.flow import Flow

_ROWS = 1024


@dataclass(frozen=True)
class Transfer:
    """What a classifier learns from the flowed set and from the source.

    Args:
        flowed: accuracy on the test set of the classifier trained on the flowed set.
        source: of the one trained on the source, under the same label map.
        label_map: target class that each class of the flowed set stands for.
        share: fraction of the plan's mass that the label map agrees with.
        k: neighbours.
        tested: size of the test set.
    """

    flowed: float
    source: float
    label_map: dict[str, str]
    share: float
    k: int
    tested: int

    def to_dict(self) -> dict[str, Any]:
        """JSON's own types."""
        return dict(vars(self))


def knn_predict(x: Tensor, y: Tensor, queries: Tensor, *, k: int = 5) -> Tensor:
    """Labels ``(q,)`` by majority among the ``k`` nearest of ``x (n, d)``; of equal votes the smaller label.

    Args:
        x: training points.
        y: ``(n,)`` their labels.
        queries: ``(q, d)``.
        k: neighbours; at most ``n`` are taken.
    """
    k = min(k, len(x))
    found = [torch.cdist(rows, x).topk(k, dim=1, largest=False).indices for rows in queries.split(_ROWS)]
    votes = torch.nn.functional.one_hot(y[torch.cat(found)], int(y.max()) + 1).sum(1)
    return votes.argmax(1)


def class_map(coupling: Tensor) -> tuple[Tensor, float]:
    """For each row of a class coupling ``(c, c')`` the column of most mass, and the fraction of all mass there."""
    best = coupling.max(1)
    return best.indices, float(best.values.sum() / coupling.sum())


@plain_torch
def transfer_check(
    source: LabeledDataset,
    flowed: LabeledDataset,
    target: LabeledDataset,
    *,
    test: LabeledDataset | None = None,
    k: int = 5,
    options: DistanceOptions | None = None,
) -> Transfer:
    """Compare classifiers trained on ``source`` and on ``flowed``, tested on the target.

    A class of the flowed set stands for the target class that it sends most mass to, under the optimal plan of the
    dataset distance between the flowed set and the target. Samples of the source keep the label that they have in the
    flowed set, row by row, so that both classifiers differ in features alone.

    Args:
        source: where the flow started.
        flowed: where it ended; row ``i`` was row ``i`` of the source.
        target: where it went.
        test: fresh samples of the target with the same class names; ``None`` tests on the target itself, whose labels
            the flow has seen.
        k: neighbours.
        options: of the distance that gives the plan.
    """
    check_sides(source=source, flowed=flowed, target=target, **({} if test is None else {"test": test}))
    k = check_count("k", k)
    if source.n != flowed.n:
        raise ValueError(f"flowed must have the {source.n} rows of source, one each, got {flowed.n}")
    source, flowed, target = (computable(side) for side in (source, flowed, target))
    test = target if test is None else computable(test)
    plan = dataset_distance(flowed, target, options=options).plan
    names, share = class_map(plan.class_coupling(flowed.y, target.y))
    positions = {name: i for i, name in enumerate(target.class_names)}
    unknown = [name for name in test.class_names if name not in positions]
    if unknown:
        raise ValueError(f"the test set has classes that the target lacks: {', '.join(map(str, unknown))}")
    truth = torch.tensor([positions[name] for name in test.class_names], device=test.x.device)[test.y]
    labels = names[flowed.y]
    accuracies = [
        float((knn_predict(side.x, labels, test.x.to(side.x.dtype), k=k) == truth).double().mean())
        for side in (flowed, source)
    ]
    mapped = {str(flowed.class_names[i]): str(target.class_names[j]) for i, j in enumerate(names.tolist())}
    return Transfer(accuracies[0], accuracies[1], mapped, share, k, test.n)


@dataclass(eq=False)
class TransferCheck(Callback):
    """A transfer check every ``every`` steps and at the end; ``history`` holds ``(step, Transfer)``.

    Args:
        source: where the flow started.
        target: where it goes.
        test: fresh samples of the target.
        k: neighbours.
        options: of the distance that gives the plan.
        every: steps between checks; 0 for the end alone.
    """

    source: LabeledDataset
    target: LabeledDataset
    test: LabeledDataset | None = None
    k: int = 5
    options: DistanceOptions | None = None
    every: int = 0
    history: list[tuple[int, Transfer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = {"source": self.source, "target": self.target}
        check_sides(**given, **({} if self.test is None else {"test": self.test}))
        check_type("options", self.options, DistanceOptions, optional=True)
        check_fields(self, check_count, "k")
        check_fields(self, check_count, "every", least=0)

    def __call__(self, flow: Flow, state: FlowState) -> None:
        """Check where it is time."""
        if self.every and state.step % self.every == 0:
            self._check(flow, state)

    def finish(self, flow: Flow, state: FlowState) -> None:
        """Check the end."""
        if not self.history or self.history[-1][0] != state.step:
            self._check(flow, state)

    def _check(self, flow: Flow, state: FlowState) -> None:
        found = transfer_check(
            self.source, flow.dataset(state), self.target, test=self.test, k=self.k, options=self.options
        )
        self.history.append((state.step, found))
