"""Points of weight zero through the Triton backend: every mode gives what the points with weight give alone."""

from __future__ import annotations

import pytest
import torch

from otdd_flash import reference
from otdd_flash.sinkhorn import Execution, SolverOptions, sinkhorn_divergence
from otdd_flash.sinkhorn.autograd import differentiable_divergence


@pytest.mark.parametrize(
    ("memory", "precision", "far"),
    [("streamed", "fp16x3", True), ("cached", "fp16x3", False), ("cached", "int8", True)],
)
def test_padding_changes_nothing(memory: str, precision: str, far: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    clouds = [torch.randint(0, 256, (n, 5), generator=rng).float() / 255 for n in (20, 15)]
    rest = torch.randint(0, 256, (4, 5), generator=rng).float() / 255 + 100 * far
    keep = torch.tensor([i for i in range(24) if i not in (0, 7, 8, 23)])
    absent = torch.tensor([0, 7, 8, 23])
    x, a = torch.empty(24, 5), torch.zeros(24, dtype=torch.float64)
    x[keep], x[absent], a[keep] = clouds[0], rest, 1 / 20
    settings = {
        "epsilon": 0.3, "options": SolverOptions(tol=1e-5),
        "execution": Execution(backend="triton", precision=precision, memory=memory),
    }  # fmt: skip
    found = sinkhorn_divergence(x, clouds[1], a=a, **settings)
    plain = sinkhorn_divergence(clouds[0], clouds[1], **settings)
    assert found.info == plain.info
    assert found.value == plain.value
    assert torch.equal(found.potentials.f[keep], plain.potentials.f)
    assert torch.equal(found.potentials.g, plain.potentials.g)
    C = reference.cost_matrix(x.double(), clouds[1].double())
    expected = reference.softmin(C, found.potentials.g, torch.full((15,), 1 / 15).double().log(), 0.3)
    torch.testing.assert_close(found.potentials.f[absent], expected[absent], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.plan.map()[keep], plain.plan.map(), rtol=1e-5, atol=1e-6)
    assert bool(found.plan.map().isfinite().all())
    points = x.clone().requires_grad_()
    value = differentiable_divergence(points, clouds[1], a=a, **settings).value
    own = clouds[0].clone().requires_grad_()
    alone = differentiable_divergence(own, clouds[1], **settings).value
    mine, theirs = (torch.autograd.grad(v, leaf)[0] for v, leaf in ((value, points), (alone, own)))
    torch.testing.assert_close(mine[keep], theirs, rtol=1e-5, atol=1e-7)
    assert float(mine[absent].abs().max()) == 0.0
