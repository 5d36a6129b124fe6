"""``SamplesLoss``, value and gradient in one call, beside GeomLoss's tensorized backend from the same inputs.

Uniform points in the unit cube and in a smaller one beside it, blur 0.1, scaling 0.5: the number of the schedule, which
both compute. The gate is GeomLoss in float64: the value to 1e-4 of itself, the gradient to 1e-3 of its largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from registry import Row, Settings, case, row, timed
from torch import Tensor

import otdd_flash as otdd

BLUR, SCALING = 0.1, 0.5
WIDTHS = (2, 3, 64, 512)
SIZES = {"cuda": (128, 256, 512, 1024, 2048, 4096), "cpu": (64, 128, 256, 512, 1000, 2000, 4000)}
_FLOAT64_ENTRIES = 1024 * 1024  # a CPU computes the reference of larger problems too slowly: float32 stands for it


def points(n: int, d: int, device: str) -> list[Tensor]:
    """Two clouds that want gradients."""
    generator = torch.Generator().manual_seed(n + d)
    x, y = (torch.rand(n, d, generator=generator) for _ in range(2))
    return [p.to(device).requires_grad_() for p in (x, 0.7 * y + 0.3)]


def gradient_of(loss: Callable[..., Tensor], clouds: list[Tensor]) -> Callable[[], list[Tensor]]:
    """A call that gives the value and the gradients by both clouds."""

    def run() -> list[Tensor]:
        value = loss(*clouds)
        return [value.detach(), *torch.autograd.grad(value, clouds)]

    return run


def compare(n: int, d: int, device: str, settings: Settings) -> list[Row]:
    """One size and width: ours, and GeomLoss where it is installed."""
    problem, clouds = f"{device}, n = m = {n}, d = {d}", points(n, d, device)
    losses: dict[str, Callable[..., Tensor]] = {"otdd-flash": otdd.SamplesLoss(blur=BLUR, scaling=SCALING)}
    expected = None
    if find_spec("geomloss") is not None:
        from geomloss import SamplesLoss

        peer = SamplesLoss("sinkhorn", p=2, blur=BLUR, scaling=SCALING, backend="tensorized")
        losses["geomloss tensorized"] = peer
        exact = torch.float64 if device != "cpu" or n * n <= _FLOAT64_ENTRIES else torch.float32
        expected = gradient_of(peer, [p.detach().to(exact).requires_grad_() for p in clouds])()
    rows = []
    for solver, loss in losses.items():
        timing, found = timed(gradient_of(loss, clouds), repeats=settings.repeats, warm=2)
        errors = [float((p - q).abs().max() / q.abs().max()) for p, q in zip(found, expected or found, strict=True)]
        good = expected is None or (errors[0] <= 1e-4 and max(errors[1:]) <= 1e-3)
        rows.append(row(problem, solver, timing, gate=good or solver != "otdd-flash", value_error=errors[0],
                        gradient_error=max(errors[1:])))  # fmt: skip
    if len(rows) == 2 and rows[0]["gate"]:
        rows[0]["times_faster"] = round(rows[1]["ms"] / rows[0]["ms"], 2)
    return rows


def cells(device: str, settings: Settings) -> list[Row]:
    """The table."""
    sizes = SIZES[device][:1] if settings.small else SIZES[device]
    return [entry for n in sizes for d in WIDTHS for entry in compare(n, d, device, settings)]


@case("gpu")
def loss_cells(settings: Settings) -> list[Row]:
    """SamplesLoss, value and gradient, n = 128 ... 4,096, d = 2 ... 512, beside GeomLoss tensorized."""
    return cells("cuda", settings)


@case("cpu")
def loss_cells_cpu(settings: Settings) -> list[Row]:
    """SamplesLoss, value and gradient, n = 64 ... 4,000, d = 2 ... 512, beside GeomLoss tensorized."""
    return cells("cpu", settings)
