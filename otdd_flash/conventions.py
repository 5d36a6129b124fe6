"""Numbers of other tools, reproduced exactly: what microsoft/otdd prints for a pair of data sets.

Its number is debiased, halved and not converged::

    C      = lambda_x |x - x'|^2 / 2 + lambda_y W[l, l'] / 2,       epsilon = entreg
    value  = <a, f - f_aa> + <b, g - g_bb>      after GeomLoss's schedule of scaling 0.5

where the schedule starts at the diameter of the rows ``[x, label index]``. The same problem solved to a tolerance is
what stands beside it in a result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from otdd_flash.checks import check_choice, check_fields, check_flag, check_number
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.labels import LabelDistances, class_samples
from otdd_flash.labels.gaussian import moment_table
from otdd_flash.labels.samples import ClassSample
from otdd_flash.sinkhorn import Execution
from otdd_flash.sinkhorn.averaged import averaged_schedule, averaged_sinkhorn
from otdd_flash.torch_mode import plain_torch_methods
from otdd_flash.types import LabeledDataset

Inner = Literal["gaussian", "gaussian_diag", "means", "exact"]
INNER = ("gaussian", "gaussian_diag", "means", "exact")
_SCALING = 0.5
# Options of dataset_distance that the convention decides, and its own name for each.
_DECIDED = {
    "epsilon": "entreg", "relative_epsilon": "entreg", "feature_weight": "lambda_x", "label_weight": "lambda_y",
    "label_distance": "inner", "label_epsilon": "inner_entreg", "debiased": None, "reach": None, "reach_x": None,
    "reach_y": None,
}  # fmt: skip


@plain_torch_methods
@dataclass(frozen=True)
class MicrosoftConvention:
    """The arguments of microsoft/otdd's ``DatasetDistance`` that change its number, under its defaults.

    Args:
        entreg: epsilon of the transport between the data sets, in units of its halved cost.
        lambda_x: factor of the halved squared feature distance.
        lambda_y: factor of the halved class-to-class term; 0 leaves the labels out.
        inner: its ``inner_ot_method``: ``gaussian`` is its ``gaussian_approx`` (``gaussian_diag`` with its
            ``diagonal_cov``), ``exact`` the entropic value between the samples of two classes, ``means`` its
            ``means_only``, where the distance of means is not squared.
        inner_entreg: epsilon of the class-to-class problems of ``exact``, in units of the unhalved squared distance.
        inner_debiased: whether ``exact`` subtracts self terms.
    """

    entreg: float = 0.1
    lambda_x: float = 1.0
    lambda_y: float = 1.0
    inner: Inner = "gaussian"
    inner_entreg: float = 0.1
    inner_debiased: bool = False

    def __post_init__(self) -> None:
        check_fields(self, check_number, "entreg", "inner_entreg")
        check_fields(self, check_number, "lambda_x", "lambda_y", closed=True)
        check_choice("inner", self.inner, INNER)
        check_flag("inner_debiased", self.inner_debiased)

    def tables(self, source: LabeledDataset, target: LabeledDataset, execution: Execution) -> LabelDistances | None:
        """Its class-to-class table, of either set's classes, or ``None`` where ``lambda_y`` is 0.

        Raises:
            ValueError: weighted samples, or a class of one sample.
        """
        _refuse_what_it_cannot(source, target)
        if self.lambda_y == 0:
            return None
        classes = class_samples(source) + class_samples(target)
        table = self._exact_table(classes, execution) if self.inner == "exact" else _moment_table(classes, self.inner)
        return LabelDistances.from_joint(
            table, source.class_names, target.class_names, f"microsoft {self.inner}", parameters=asdict(self)
        )

    def value(
        self, cost: DotProductCost, source: LabeledDataset, target: LabeledDataset, execution: Execution
    ) -> float:
        """Its number for the cost ``C`` between two sets; their labels take part in the schedule even unweighted."""
        labels = source.y, target.y + source.num_classes
        rows = [torch.cat([cost.centred(k, torch.float64), labels[k][:, None].to(torch.float64)], 1) for k in (0, 1)]
        return _schedule_value(cost, self.entreg, _diameter(*rows), execution, debiased=True)

    def record(self, value: float, converged: float) -> dict[str, Any]:
        """What a result says about the number, JSON-safe."""
        return {
            "name": "microsoft",
            "value": value,
            "converged": False,
            "off_by": (value - converged) / converged if converged else 0.0,
            "remark": "value after microsoft/otdd's fixed schedule, not converged; the result's own value is the "
            "converged one of the same problem",
            "settings": asdict(self),
        }

    def _exact_table(self, classes: Sequence[ClassSample], execution: Execution) -> Tensor:
        """Entropic values between the samples of any two classes; each pair has a schedule of its own."""
        table = torch.zeros(len(classes), len(classes), dtype=torch.float64)
        for i, j in itertools.combinations(range(len(classes)), 2):
            points = [classes[k].points.to(torch.float64) for k in (i, j)]
            cost = DotProductCost.build(
                [PointCloud(p, classes[k].weights) for p, k in zip(points, (i, j), strict=True)]
            )
            value = _schedule_value(
                cost, self.inner_entreg, _diameter(*points), execution, debiased=self.inner_debiased
            )
            if not math.isfinite(value):
                raise ValueError(
                    f"inner_entreg={self.inner_entreg} gives {value} between {classes[i].name} and {classes[j].name}, "
                    "beyond the range of floats: give a larger one, or rescale the features"
                )
            table[i, j] = table[j, i] = value
        return table


def refuse_decided(options: Any, defaults: Any) -> None:
    """Refuse options of a distance that were given although the convention decides them.

    Raises:
        ValueError: the first such option.
    """
    for name, theirs in _DECIDED.items():
        given, default = getattr(options, name), getattr(defaults, name)
        if given is not default and given != default:
            instead = f"give MicrosoftConvention({theirs}=...)" if theirs else "it has no such option"
            raise ValueError(f"{name}={given!r} does not go with convention='microsoft': {instead}")


class _UnbiasedSample(ClassSample):
    """A class whose covariance is divided by ``n - 1``."""

    @cached_property
    def variance(self) -> Tensor:
        """``(d,)`` unbiased variance of each feature."""
        return super().variance * (self.n / (self.n - 1))

    @cached_property
    def factor(self) -> Tensor:
        """``(r, d)`` factor of the unbiased covariance."""
        return super().factor * math.sqrt(self.n / (self.n - 1))


def _moment_table(classes: Sequence[ClassSample], inner: str) -> Tensor:
    """``(c, c)`` table from class moments."""
    if inner == "means":
        return moment_table(classes, inner)[0].sqrt()
    unbiased = [_UnbiasedSample(c.x, c.index, c.weights, c.name) for c in classes]
    return moment_table(unbiased, inner)[0]


def _schedule_value(
    cost: DotProductCost, epsilon: float, diameter: float, execution: Execution, *, debiased: bool
) -> float:
    """``<a, f> + <b, g>`` after the schedule, less the same of the self problems where debiased."""
    precise = execution.precision == "auto" and (cost.device.type != "cuda" or execution.backend == "torch")
    how = replace(execution, precision="fp64") if precise else execution
    problems = [(0, 1), (0, 0), (1, 1)] if debiased else [(0, 1)]
    operator = how.operator(cost, problems, epsilon=epsilon)
    found = averaged_sinkhorn(operator, averaged_schedule(diameter, math.sqrt(epsilon), _SCALING))
    f, g = (operator.a * found.f).sum(1), (operator.b * found.g).sum(1)
    return float(f[0] + g[0] - (f[1] + f[2] if debiased else 0.0))


def _diameter(x: Tensor, y: Tensor) -> float:
    """Diagonal of the box around all rows."""
    both = torch.cat([x, y])
    return float((both.amax(0) - both.amin(0)).norm())


def _refuse_what_it_cannot(source: LabeledDataset, target: LabeledDataset) -> None:
    for side in (source, target):
        if side.weights is not None and float(side.weights.max() - side.weights.min()) > 1e-9 / side.n:
            raise ValueError(f"microsoft/otdd knows uniform weights only, but {side.name!r} has others")
        if int(side.class_counts.min()) < 2:
            lost = side.class_names[int(side.class_counts.argmin())]
            raise ValueError(
                f"class {lost!r} of {side.name!r} has one sample; microsoft/otdd leaves such classes out "
                "(min_labelcount=2): do so with min_class_size=2 when loading"
            )
