"""A drop-in for GeomLoss's ``SamplesLoss("sinkhorn", p=2)``: its signature, its cost, its schedule, its numbers.

GeomLoss's conventions, other than this library's: ``C = |x - y|^2 / 2``, ``epsilon = blur^2``, ``rho = reach^2``, and
the value after an annealing schedule of fixed length, which is *not converged*. ``tol`` asks for the converged value of
the same problem instead.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from otdd_flash.checks import check_choice, check_count, check_number, check_tensor, check_text
from otdd_flash.errors import warn
from otdd_flash.ops import Memory, Precision
from otdd_flash.sinkhorn.averaged import averaged_schedule
from otdd_flash.sinkhorn.averaged_loss import LossSettings, Measures, SinkhornLoss, combined, evaluate
from otdd_flash.torch_mode import plain_torch

_MEMORY: dict[str, Memory] = {"auto": "auto", "tensorized": "cached", "online": "streamed", "multiscale": "auto"}
_TINY, _HUGE = 1e-150, 1e150
_STIFF = 1e6  # of reach over the size of the problem: its square is 1e12
_INSTEAD = {
    "gaussian": "kernel norms are not optimal transport; keep geomloss for them",
    "laplacian": "kernel norms are not optimal transport; keep geomloss for them",
    "energy": "it is the limit of loss='sinkhorn' for a large blur; else keep geomloss for it",
    "hausdorff": "keep geomloss for it, or take loss='sinkhorn' with a reach",
}


class SamplesLoss(nn.Module):
    """Sinkhorn divergence between sampled measures, with GeomLoss's signature and values.

    ``forward(x, y)``, ``forward(a, x, b, y)`` or ``forward(l_x, a, x, l_y, b, y)`` for points ``(n, d)`` or batches
    ``(B, n, d)``, weights ``(n,)`` or ``(B, n)``. Gradients with respect to points and weights are those of the
    transport problem at its optimal potentials (envelope theorem), of first order, in the dtype of each input.
    GeomLoss's own are the same for ``reach=None``; with a ``reach`` they are too small by the factor
    ``(rho + eps/2) / (rho + eps)``, here they are not. With a ``reach`` and without ``debias`` GeomLoss's value holds a
    constant more, ``eps ((m_a + m_b)/2 - m_a m_b)`` of the masses. A point of weight zero is no point.

    Args:
        loss: ``"sinkhorn"``.
        p: 2, for the cost ``|x - y|^2 / 2``.
        blur: ``epsilon = blur^2``, in units of distance.
        reach: ``rho = reach^2`` of the KL penalty on the marginals, in units of distance; ``None`` prescribes them, as
            does, between equal masses, a reach beyond ``1e6`` times blur and bounding box.
        diameter: where the schedule starts, in units of distance; ``None`` for that of the bounding box of the points
            with weight.
        scaling: factor of the blur from one step of the schedule to the next.
        truncate: of GeomLoss's multiscale backend; nothing is truncated here.
        cost: must be ``None``.
        kernel: must be ``None``.
        cluster_scale: of GeomLoss's multiscale backend; there are no clusters here.
        debias: subtract the self terms.
        potentials: return dual potentials (detached) instead of the value.
        verbose: accepted, prints nothing.
        backend: ``"tensorized"`` stores costs, ``"online"`` streams them, ``"auto"`` and ``"multiscale"`` choose by the
            free memory.
        tol: ``None`` for GeomLoss's number; else the L1 marginal error (fraction of the mass) to converge to.
        max_iterations: passes allowed with ``tol``.
        precision: as in :func:`otdd_flash.ops.make_operator`.

    Raises:
        ValueError: another loss or ``p``, a custom cost, shapes or weights that do not fit, complex numbers, points
            whose squared distances are beyond floats.
        TypeError: what is no tensor, no number or no bool where one is asked for.

    >>> import torch
    >>> float(SamplesLoss(blur=0.5, debias=False)(torch.zeros(1, 2), torch.full((1, 2), 3.0)))
    9.0
    """

    def __init__(
        self,
        loss: str = "sinkhorn",
        p: int = 2,
        blur: float = 0.05,
        reach: float | None = None,
        diameter: float | None = None,
        scaling: float = 0.5,
        truncate: float | None = 5,
        cost: Any = None,
        kernel: Any = None,
        cluster_scale: float | None = None,
        debias: bool = True,
        potentials: bool = False,
        verbose: bool = False,
        backend: str = "auto",
        *,
        tol: float | None = None,
        max_iterations: int = 1000,
        precision: Precision = "auto",
    ) -> None:
        super().__init__()
        _refuse_other_losses(loss, p, cost, kernel)
        check_choice("backend", backend, tuple(_MEMORY))
        check_choice("precision", precision, get_args(Precision))
        max_iterations = check_count("max_iterations", max_iterations)
        _check_numbers(
            {"blur": blur, "reach": reach, "diameter": diameter, "scaling": scaling, "tol": tol},
            {"debias": debias, "potentials": potentials, "verbose": verbose},
        )
        blur, scaling = float(blur), float(scaling)
        reach, diameter, tol = (None if value is None else float(value) for value in (reach, diameter, tol))
        self.loss, self.p, self.blur, self.reach, self.diameter, self.scaling = loss, p, blur, reach, diameter, scaling
        self.truncate, self.cost, self.kernel, self.cluster_scale = truncate, cost, kernel, cluster_scale
        self.debias, self.potentials, self.verbose, self.backend = debias, potentials, verbose, backend
        self.tol, self.max_iterations, self.precision = tol, max_iterations, precision

    @plain_torch
    def forward(self, *args: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """The loss, ``()`` or ``(B,)``, or the potentials, of the shape of the weights.

        Args:
            *args: ``x, y``; ``a, x, b, y``; or ``l_x, a, x, l_y, b, y`` where ``l_x, l_y`` are GeomLoss's cluster
                labels, which steer its multiscale approximation and are of no influence here.
        """
        a, x, b, y = self._arguments(args)
        batched = x.dim() == 3
        measures, facts = _measures(a, x, b, y)
        settings = self._settings(measures, facts)
        out = torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else torch.float32
        if self.potentials:
            with torch.no_grad():
                dual = evaluate(measures, settings).dual
            pair = tuple((s if batched else s[0]).to(out) for s in combined(dual, settings))
            return pair[0], pair[1]
        value = SinkhornLoss.apply(measures.x, measures.a, measures.y, measures.b, settings).to(out)
        return value if batched else value[0]

    def extra_repr(self) -> str:
        """The settings that change the number."""
        number = "schedule's number, not converged" if self.tol is None else f"tol={self.tol}"
        return f"{self.loss!r}, blur={self.blur}, reach={self.reach}, debias={self.debias}, {number}"

    def _arguments(self, args: tuple[Tensor | None, ...]) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor]:
        if len(args) not in (2, 4, 6):
            raise ValueError(
                f"SamplesLoss takes (x, y), (a, x, b, y) or (l_x, a, x, l_y, b, y), got {len(args)} arguments"
            )
        if len(args) == 6:
            labels, args = (args[0], args[3]), (args[1], args[2], args[4], args[5])
            if any(side is not None for side in labels):
                warn(
                    "cluster labels only steer geomloss's multiscale approximation; the value here is computed from "
                    "all points. For labels that are classes use otdd_flash.dataset_distance"
                )
            for name, side, points in zip(("l_x", "l_y"), labels, (args[1], args[3]), strict=True):
                if side is not None and points is not None and side.numel() != points.shape[-2]:
                    raise ValueError(f"{name} must have {points.shape[-2]} entries, got shape {tuple(side.shape)}")
        a, x, b, y = (None, args[0], None, args[1]) if len(args) == 2 else args
        if x is None or y is None:
            raise ValueError("the points x and y must be tensors, got None")
        _check_tensors({"a": a, "x": x, "b": b, "y": y})
        return a, x, b, y

    def _settings(self, measures: Measures, facts: _Facts) -> LossSettings:
        rho = self._rho(facts)
        if rho is None and facts.unequal > 1e-2:  # float16 weights may sum to 1.002
            raise _unequal_masses(measures)
        return LossSettings(
            epsilon=self.blur**2, unbalanced=self.reach is not None, rho=rho, debias=self.debias,
            schedule=tuple(averaged_schedule(self.diameter or facts.diameter, self.blur, self.scaling)), tol=self.tol,
            max_iterations=self.max_iterations, memory=_MEMORY[self.backend], precision=self.precision,
            largest=facts.extent**2 / 2, positive=facts.positive,
        )  # fmt: skip

    def _rho(self, facts: _Facts) -> float | None:
        """Strength of the penalty; ``None`` where potentials, of the size of ``diameter^2``, are nothing beside it.

        Between equal masses that is the balanced problem; between others no limit exists.
        """
        if self.reach is None:
            return None
        if self.reach > _STIFF * max(self.blur, facts.diameter) and facts.unequal <= 1e-6:
            return None
        if self.reach > _HUGE:
            raise ValueError(f"reach={self.reach} is too large for unequal masses: normalise the weights, or lower it")
        return self.reach**2


def _check_numbers(numbers: dict[str, Any], flags: dict[str, Any]) -> None:
    """Real numbers whose squares are floats, and flags that are bools: ``bool("False")`` is true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    for name, value in numbers.items():
        if value is None and name in ("reach", "diameter", "tol"):
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        number = check_number(name, value)
        if not 0 < number < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}")
        largest = _HUGE if name in ("blur", "diameter") else float("inf")
        if not _TINY < number < largest:
            raise ValueError(
                f"{name} must lie between {_TINY} and {largest}, so that its square is a float, got {value}"
            )
    if not numbers["scaling"] < 1:
        raise ValueError(f"scaling must lie in (0, 1), got {numbers['scaling']}")


def _refuse_other_losses(loss: str, p: int, cost: Any, kernel: Any) -> None:
    check_text("loss", loss)
    if loss != "sinkhorn":
        known = _INSTEAD.get(loss, "geomloss knows sinkhorn, hausdorff, energy, gaussian and laplacian")
        raise ValueError(f"loss={loss!r} is not offered, only 'sinkhorn': {known}")
    if check_number("p", p) != 2:
        raise ValueError(f"p={p} is not offered, only p=2 (cost |x - y|^2 / 2): keep geomloss for p=1")
    if cost is not None:
        raise ValueError("a custom cost is not offered: embed the points so that |x - y|^2 / 2 is the cost, or give "
                         "label distances to otdd_flash.dataset_distance")  # fmt: skip
    if kernel is not None:
        raise ValueError("kernel belongs to the kernel losses, which are not offered: keep geomloss for them")


def _check_tensors(given: dict[str, Tensor | None]) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"{name} must be a torch tensor, got {type(value).__name__}: pass torch tensors, torch.as_tensor(...)"
            )
        if value is not None and value.is_complex():
            raise ValueError(f"{name} must be real, got {value.dtype}")
        if value is not None:
            check_tensor(name, value)


def _measures(a: Tensor | None, x: Tensor, b: Tensor | None, y: Tensor) -> tuple[Measures, _Facts]:
    """The checked batch; conversions stay on the autograd tape, so that gradients return in each input's dtype."""
    if x.dim() not in (2, 3) or x.dim() != y.dim() or x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x and y must be (n, d) and (m, d), or (B, n, d) and (B, m, d), got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if 0 in x.shape or 0 in y.shape:
        raise ValueError(f"x and y must hold points, got {tuple(x.shape)} and {tuple(y.shape)}")
    devices = {t.device for t in (a, x, b, y) if t is not None}
    if len(devices) > 1:
        raise ValueError(f"points and weights must be on one device, got {sorted(map(str, devices))}")
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    points = [(p if p.dim() == 3 else p[None]).to(dtype) for p in (x, y)]
    weights = [_weights(w, p, name) for w, p, name in zip((a, b), (x, y), ("a", "b"), strict=True)]
    plain = [p.detach() for p in points], [w.detach() for w in weights]
    facts = _Facts.look(*plain, given=a is not None or b is not None)
    # one shift a pair, kept off the tape: the loss does not depend on it, and float32 keeps its digits
    shares = [(w / w.sum(1, keepdim=True))[:, None] for w in plain[1]]
    means = [s @ p.to(torch.float64) for s, p in zip(shares, plain[0], strict=True)]
    centre = ((means[0] + means[1]) / 2).to(dtype)
    points = [p - centre for p in points]
    return Measures(points[0], weights[0], points[1], weights[1]), facts


def _weights(weights: Tensor | None, points: Tensor, name: str) -> Tensor:
    """``(B, n)`` float64 weights; uniform where none are given."""
    shape = points.shape[:-1]
    if weights is None:
        uniform = torch.full(shape, 1.0 / shape[-1], dtype=torch.float64, device=points.device)
        return uniform if points.dim() == 3 else uniform[None]
    if weights.shape not in (shape, (*shape, 1)):
        raise ValueError(f"weights {name} must have shape {tuple(shape)}, got {tuple(weights.shape)}")
    return weights.reshape(-1, shape[-1]).to(torch.float64)


class _Facts(NamedTuple):
    """What the host needs to know about a batch before anything is launched.

    Args:
        diameter: diagonal of the bounding box of the points with weight, in their precision as GeomLoss has it.
        extent: the same for all points.
        unequal: largest difference between the masses of a pair, as a fraction of the larger.
        positive: no weight is zero.
    """

    diameter: float
    extent: float
    unequal: float
    positive: bool

    @classmethod
    def look(cls, points: list[Tensor], weights: list[Tensor], *, given: bool) -> _Facts:
        """Check the batch, with one wait for the device.

        Raises:
            ValueError: NaN or infinity, weights that are none, points too far apart for their dtype.
        """
        flat = [p.flatten(0, 1) for p in points]
        ends = [(p.amin(0), p.amax(0)) for p in flat]
        seen = [torch.stack(pair).isfinite().all() for pair in ends] + [_diagonal(ends)]
        if given:
            totals = [w.sum(1) for w in weights]
            seen += [fact for w, t in zip(weights, totals, strict=True) for fact in (w.amin(), t.amin(), t.amax())]
            seen.append(((totals[0] - totals[1]).abs() / torch.maximum(*totals)).amax())
            inside = [w.flatten()[:, None] > 0 for w in weights]
            seen.append(_diagonal([(torch.where(i, p, torch.inf).amin(0), torch.where(i, p, -torch.inf).amax(0))
                                   for i, p in zip(inside, flat, strict=True)]))  # fmt: skip
        finite_x, finite_y, extent, *rest = torch.stack([fact.to(torch.float64) for fact in seen]).tolist()
        for name, finite in (("x", finite_x), ("y", finite_y)):
            if not finite:
                raise ValueError(f"{name} holds NaN or infinity")
        for name, (least, low, high) in zip("ab", (rest[:3], rest[3:6]), strict=True) if given else ():
            if not (least >= 0 and low > 0 and high < float("inf")):
                raise ValueError(
                    f"weights {name} must be non-negative and finite, with a positive sum for every measure"
                )
        unequal, diameter = rest[6:] if given else (0.0, extent)
        dtype = points[0].dtype
        largest = torch.finfo(dtype).max ** 0.5
        if not diameter < min(largest, _HUGE):
            raise ValueError(
                f"x and y lie {diameter:g} apart, squared beyond {dtype} (at most {largest:.3g}): rescale the points"
            )
        return cls(diameter, extent, unequal, not given or min(rest[0], rest[3]) > 0)


def _diagonal(ends: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Length of the diagonal of the box around some boxes, each ``(lowest, highest)`` coordinates ``(d,)``."""
    (low, high), (low_y, high_y) = ends
    return (torch.maximum(high, high_y) - torch.minimum(low, low_y)).norm()


def _unequal_masses(measures: Measures) -> ValueError:
    """Hard constraints that no plan can meet."""
    masses = torch.stack([measures.a.detach().sum(1), measures.b.detach().sum(1)])
    worst = int((masses[0] - masses[1]).abs().argmax())
    return ValueError(
        f"balanced transport needs equal masses, got {float(masses[0, worst]):g} and {float(masses[1, worst]):g}: "
        "normalise the weights, or give a reach"
    )
