"""Side by side with other solvers on one GPU: the same inputs, the same run, each as its authors ship it."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from gpu import DEVICE, TOL, marginal_error, plain_cost
from peers import bound, flash_loss, flash_missing, installed, iterations_needed
from registry import Row, Settings, case, row, timed
from torch import Tensor

from otdd_flash.errors import NotConvergedWarning
from otdd_flash.ops import Memory, PlanOperator, Precision, make_operator
from otdd_flash.sinkhorn import Divergence, Execution, SolverOptions, divergence, solve
from otdd_flash.sinkhorn.autograd import LabelTerm, differentiable_divergence
from otdd_flash.sinkhorn.hessian import SinkhornHessian
from otdd_flash.sinkhorn.implicit import ImplicitOptions
from otdd_flash.sinkhorn.krylov import conjugate_gradients
from otdd_flash.types import Potentials

SHAPES = ((50_000, 64), (10_000, 784))
TRIPLE = [(0, 1), (0, 0), (1, 1)]
CLASSES = 10
MODES: tuple[tuple[Precision, Memory], ...] = (("fp16", "streamed"), ("fp16x3", "streamed"), ("auto", "auto"))


def gaussian(n: int, d: int, seed: int) -> Tensor:
    """Points of N(0, I)."""
    return torch.randn(n, d, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))


def weights(n: int, seed: int) -> Tensor:
    """flash-sinkhorn's own bench weights: uniform on [0.1, 1.1], normalised."""
    raw = torch.rand(n, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed)) + 0.1
    return raw / raw.sum()


@case("gpu")
def fixed_work(settings: Settings) -> list[Row]:
    """flash-sinkhorn's own bench: N(0, I), epsilon 0.1, 10 symmetric iterations, that is 22 half steps."""
    rows = []
    for n, d in SHAPES:
        n = settings.size(n)
        x, y, a, b = gaussian(n, d, 0), gaussian(n, d, 1), weights(n, 2), weights(n, 3)
        problem = f"22 half steps, N(0, I), n = {n}, d = {d}, epsilon 0.1"
        for mode, memory in (("fp16", "streamed"), ("fp16x3", "streamed"), ("fp16x3", "cached")):
            cost = plain_cost(x, y, a, b)
            operator = make_operator(cost, [(0, 1)], epsilon=0.1, backend="triton", precision=mode, memory=memory)
            timing, (f, g, said) = timed(partial(symmetric_iterations, operator, 0.1, 10), repeats=settings.repeats)
            error = marginal_error(x, y, f, g, 0.1, a, b)
            # the certificate must be the truth; at epsilon = 1/1280 of the mean cost float16 operands cannot be that
            good = abs(error - said) <= (0.02 if mode == "fp16x3" else 0.5) * max(error, 0.05)
            rows.append(row(problem, f"otdd-flash {mode} {memory}", timing, gate=good, marginal_error=error))
            del operator
        if flash_missing() is None:
            for tf32 in (True, False):
                common: dict[str, Any] = {
                    "backend": "symmetric", "use_epsilon_scaling": False, "eps": 0.1, "n_iters": 10, "debias": False,
                    "normalize": False, "last_extrapolation": False, "allow_tf32": tf32,
                }  # fmt: skip
                rows.append(_flash_row(problem, common, (a, x, b, y), 0.1, settings))
    return rows


def symmetric_iterations(operator: PlanOperator, epsilon: float, count: int) -> tuple[Tensor, Tensor, float]:
    """Two safe half steps, then ``count`` averaged updates of both potentials, one fused pass each.

    Returns the potentials and the marginal error that one more pass says they have.
    """
    f = operator.softmin(torch.zeros_like(operator.b), epsilon, side="rows")
    g = operator.softmin(f, epsilon, side="columns")
    for _ in range(count):
        r, c = operator.marginals(f, g, epsilon)
        f = f + 0.5 * epsilon * torch.where(operator.a > 0, (operator.a / r).log(), 0.0)
        g = g + 0.5 * epsilon * torch.where(operator.b > 0, (operator.b / c).log(), 0.0)
    r, c = operator.marginals(f, g, epsilon)  # the certificate; its time counts too
    error = float((r - operator.a).abs().sum() + (c - operator.b).abs().sum())
    return operator.unpack_rows(f[0], 0), operator.unpack_columns(g[0], 0), error


def _flash_row(problem: str, options: dict[str, Any], inputs: tuple[Tensor, ...], eps: float, s: Settings) -> Row:
    """Time of flash-sinkhorn's loss and the marginal error of the potentials that it gives with the same options."""
    from flash_sinkhorn import SamplesLoss

    loss, potentials = SamplesLoss("sinkhorn", **options), SamplesLoss("sinkhorn", **options, potentials=True)
    with torch.no_grad():
        timing, _ = timed(lambda: loss(*inputs), repeats=min(s.repeats, 3))
        f, g = potentials(*inputs)
    a, x, b, y = inputs
    error = marginal_error(x, y, f.flatten(), g.flatten(), eps, a, b)
    precision = "TF32" if options["allow_tf32"] else "float32"
    return row(problem, f"flash-sinkhorn {precision}", timing, gate=bool(f.isfinite().all()), marginal_error=error)


@case("gpu")
def debiased_call(settings: Settings) -> list[Row]:
    """A debiased loss with annealing, uniform weights: flash-sinkhorn's 72 half steps, and ours to a certificate."""
    rows = []
    for n, d in SHAPES:
        n = settings.size(n)
        x, y = gaussian(n, d, 0), gaussian(n, d, 1) + 0.1
        epsilon = 0.01 * plain_cost(x, y).mean(0, 1)
        for term in (None, label_term(n)):
            problem = f"debiased value, {_size(n, d, term)}"
            rows += _our_values(problem, (x, y), epsilon, term, settings)
            if term is None:
                rows.append(_equal_passes(problem, x, y, epsilon, settings))
            if flash_missing() is None:
                rows.append(_flash_value(problem, (x, y), epsilon, term))
    return rows


def _size(n: int, d: int, term: LabelTerm | None) -> str:
    return f"n = {n}, d = {d}" + (f", {CLASSES} + {CLASSES} classes" if term is not None else "")


def _our_values(
    problem: str, clouds: tuple[Tensor, Tensor], epsilon: float, term: LabelTerm | None, settings: Settings
) -> list[Row]:
    rows = []
    for mode, memory in MODES:
        run = partial(
            differentiable_divergence, *clouds, epsilon=epsilon, labels=term, options=SolverOptions(tol=TOL),
            execution=Execution("triton", mode, memory),
        )  # fmt: skip
        with torch.no_grad():
            timing, result = timed(run, repeats=settings.repeats)
        found = result.certificate
        rows.append(
            row(problem, f"otdd-flash {found.info.precision} {found.info.memory}, to {TOL:g}", timing,
                gate=found.converged, marginal_error=found.marginal_error, value=found.value)
        )  # fmt: skip
    return rows


def _flash_value(problem: str, clouds: tuple[Tensor, Tensor], epsilon: float, term: LabelTerm | None) -> Row:
    loss, extra = _flash_debiased(epsilon, term)
    with torch.no_grad():
        timing, value = timed(lambda: loss(*clouds, **extra), repeats=3)
    name = "flash-sinkhorn TF32, its schedule (not converged)"
    return row(problem, name, timing, gate=bool(value.isfinite()), value=float(value))


def _equal_passes(problem: str, x: Tensor, y: Tensor, epsilon: float, settings: Settings) -> Row:
    """Twelve debiased passes of ours, as many as flash-sinkhorn makes (72 half steps are 12 of all six)."""
    cost = plain_cost(x, y)
    largest = max(cost.bound(i, j) for i, j in TRIPLE)
    options = SolverOptions(tol=1e-12, max_iterations=1, scaling=min(0.99, (epsilon / largest) ** (1 / 20)))

    def run() -> Any:
        operator = make_operator(cost, TRIPLE, epsilon=epsilon, backend="triton", precision="fp16", memory="streamed")
        return solve(operator, epsilon, options)

    timing, solution = timed(run, repeats=settings.repeats)
    error = float(solution.marginal_error.max())
    return row(problem, "otdd-flash fp16 streamed, 12 passes", timing, gate=math.isfinite(error), marginal_error=error)


def label_term(n: int) -> LabelTerm:
    """Random classes for both sides and a random symmetric table over the classes of both."""
    table = torch.rand(2 * CLASSES, 2 * CLASSES, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(7)) * 10
    ids = [
        torch.randint(0, CLASSES, (n,), device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(k)) for k in (5, 6)
    ]
    return LabelTerm((table + table.T) / 2, ids[0], ids[1] + CLASSES)


def _flash_debiased(epsilon: float, term: LabelTerm | None) -> tuple[Any, dict[str, Tensor]]:
    """flash-sinkhorn's debiased loss, and the labels of a call."""
    if term is None:
        return flash_loss(epsilon, debiased=True), {}
    loss = flash_loss(epsilon, debiased=True, label_cost_matrix=term.table.float(), lambda_x=1.0, lambda_y=1.0)
    return loss, {"label_x": term.x_labels, "label_y": term.y_labels}


@case("gpu")
def gradient(settings: Settings) -> list[Row]:
    """Debiased value and its gradient in x, with and without labels; ours to a certificate."""
    rows = []
    for n, d in SHAPES:
        n = settings.size(n)
        x, y = gaussian(n, d, 0).requires_grad_(), gaussian(n, d, 1) + 0.1
        epsilon = 0.05 * plain_cost(x.detach(), y).mean(0, 1)
        for term in (None, label_term(n)):
            problem = f"value and gradient, {_size(n, d, term)}"
            rows += _our_gradients(problem, (x, y), epsilon, term, settings)
            if flash_missing() is None:
                rows.append(_flash_gradient(problem, (x, y), epsilon, term))
    return rows


def _our_gradients(
    problem: str, clouds: tuple[Tensor, Tensor], epsilon: float, term: LabelTerm | None, settings: Settings
) -> list[Row]:
    x, y = clouds
    rows = []
    for mode, memory, tol in (
        ("fp16", "streamed", 1e-2),
        ("fp16", "cached", TOL),
        *((mode, memory, TOL) for mode, memory in MODES),
    ):
        execution = Execution("triton", mode, memory)

        def run(execution: Execution = execution, tol: float = tol) -> Divergence:
            x.grad = None
            result = differentiable_divergence(
                x, y, epsilon=epsilon, labels=term, execution=execution, options=SolverOptions(tol=tol)
            )
            result.value.backward()
            return result.certificate

        timing, found = timed(run, repeats=settings.repeats)
        assert x.grad is not None
        error = gradient_error(found, x.grad, y)
        good = found.converged and error <= (2e-2 if mode == "fp16" else 1e-3)
        rows.append(
            row(problem, f"otdd-flash {found.info.precision} {found.info.memory}, to {tol:g}", timing, gate=good,
                error=error, marginal_error=found.marginal_error)
        )  # fmt: skip
    return rows


def _flash_gradient(problem: str, clouds: tuple[Tensor, Tensor], epsilon: float, term: LabelTerm | None) -> Row:
    """Its time; its error is against our last gradient, which still stands in ``x.grad``."""
    x, y = clouds
    assert x.grad is not None
    exact = x.grad.clone()
    loss, extra = _flash_debiased(epsilon, term)

    def run() -> None:
        x.grad = None
        loss(x, y, **extra).backward()

    timing, _ = timed(run, repeats=3)
    error = float((x.grad - exact).norm() / exact.norm())
    return row(problem, "flash-sinkhorn TF32", timing, gate=error < 0.5, error=error)


def gradient_error(found: Any, gradient: Tensor, y: Tensor) -> float:
    """Relative error of ``2 sum_j P_ij (x_i - y_j) - 2 sum_j Q_ij (x_i - x_j)`` against float64, at 2,000 rows."""
    x = found.cost.clouds[0].points.double()
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:2000].to(x.device)
    exact = torch.zeros(len(rows), x.shape[1], dtype=torch.float64, device=x.device)
    f, g = found.potentials
    self_f = found.self_potentials[0]
    for sign, points, left, right, cloud in ((1, y.double(), f, g, 1), (-1, x, self_f, self_f, 0)):
        cost = x[rows].square().sum(1)[:, None] + points.square().sum(1) - 2 * x[rows] @ points.T
        if found.cost.table is not None:
            ids = [found.cost.clouds[k].labels for k in (0, cloud)]
            cost += found.cost.table[ids[0][rows]][:, ids[1]]
        plan = ((left[rows, None] + right - cost) / found.epsilon).exp() / len(x) / len(points)
        exact += sign * 2 * (plan.sum(1)[:, None] * x[rows] - plan @ points)
    return float((gradient[rows].double() - exact).norm() / exact.norm())


@case("gpu")
def same_error(settings: Settings) -> list[Row]:
    """The cross problem of N(0, I), n = 10,000, d = 784, epsilon 0.05 of the mean cost, each solver to error 1e-3."""
    n, d = settings.size(10_000), 784
    x, y = gaussian(n, d, 0), gaussian(n, d, 1)
    epsilon = 0.05 * plain_cost(x, y).mean(0, 1)
    problem, rows = f"cross problem, N(0, I), n = {n}, d = {d}, to {TOL:g}", []

    def check(f: Tensor, g: Tensor) -> float:
        return marginal_error(x, y, f, g, epsilon)

    for mode, memory in (("fp16x3", "streamed"), ("fp16x3", "cached")):
        execution = Execution("triton", mode, memory)

        def run(execution: Execution = execution) -> Any:
            options = SolverOptions(tol=TOL, check_every=2)
            return divergence(plain_cost(x, y), epsilon, debiased=False, options=options, execution=execution)

        timing, found = timed(run, repeats=settings.repeats)
        error = check(*found.potentials)
        rows.append(row(problem, f"otdd-flash {mode} {memory}", timing, gate=error <= 1.1 * TOL, marginal_error=error))
    for name, make in installed().items():
        count, error = iterations_needed(bound(make, x, y, epsilon), check, TOL)
        solver = f"{name}, {count or 640} iterations" + ("" if count else " (does not reach it)")
        timing, _ = timed(make(x, y, epsilon, count or 640), repeats=3)
        rows.append(row(problem, solver, timing, gate=math.isfinite(error), marginal_error=error))
    return rows


@case("gpu")
def hvp(settings: Settings) -> list[Row]:
    """Hessian of the plain entropic value times a direction: 50 conjugate-gradient steps, and ours to 1e-6."""
    rows = []
    for d in (64, 512):
        n = settings.size(10_000)
        x, y, direction = gaussian(n, d, 0), gaussian(n, d, 1) + 0.1, gaussian(n, d, 2)
        epsilon = 0.05 * plain_cost(x, y).mean(0, 1)
        problem = f"Hessian times a direction, n = {n}, d = {d}"
        options = SolverOptions(tol=1e-6)
        tight = divergence(
            plain_cost(x, y), epsilon, debiased=False, options=options,
            execution=Execution("triton", "fp16x3", "cached"), keep_operator=True,
        )  # fmt: skip
        exact = exact_hessian_product(x, y, tight.potentials, epsilon, direction)
        steps = (
            ("50 steps", ImplicitOptions(tol=1e-30, max_iterations=50)),
            ("to 1e-6", ImplicitOptions()),
            ("to 1e-3", ImplicitOptions(tol=1e-3)),
        )
        for memory in ("cached", "streamed"):
            for name, limits in steps:
                run = partial(_hessian_product, tight, memory, limits, direction)
                timing, (found, taken) = timed(run, repeats=settings.repeats)
                error = float((found - exact).norm() / exact.norm())
                rows.append(
                    row(problem, f"otdd-flash fp16x3 {memory}, {name}", timing, gate=error < 1e-3, error=error,
                        iterations=taken)
                )  # fmt: skip
        if flash_missing() is None:
            rows += _flash_hessian(problem, (x, y), tight.potentials, epsilon, (direction, exact))
    return rows


def _hessian_product(
    found: Divergence, memory: Memory, limits: ImplicitOptions, direction: Tensor
) -> tuple[Tensor, int]:
    """A product from the solved problem on: operators, plans and marginals are made anew."""
    hessian = SinkhornHessian(found, memory=memory, options=limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # 50 steps are 50 steps
        return hessian @ direction, hessian.record.iterations


def _flash_hessian(
    problem: str, clouds: tuple[Tensor, Tensor], potentials: Potentials, epsilon: float, known: tuple[Tensor, Tensor]
) -> list[Row]:
    from flash_sinkhorn.hvp import hvp_x_sqeuclid_from_potentials

    direction, exact = known
    f, g = ((h - epsilon * math.log(len(h))).float() for h in potentials)  # theirs holds the weights
    rows = []
    always = {"cg_rtol": 0.0, "cg_atol": 0.0}  # its steps go on past convergence, where some lose their footing
    for name, options in (
        ("TF32 streamed, 50 steps", {"allow_tf32": True, **always}),
        ("float32, plan in memory, 50 steps", {"use_dense_cg": True, **always}),
        ("TF32 streamed, its tolerance", {"allow_tf32": True}),
        ("float32, plan in memory, its tolerance", {"use_dense_cg": True}),
    ):

        def run(options: dict[str, Any] = options) -> Tensor:
            return hvp_x_sqeuclid_from_potentials(*clouds, f, g, direction, eps=epsilon, max_cg_iter=50, **options)[0]

        timing, found = timed(run, repeats=3)
        error = float((found.double() - exact).norm() / exact.norm())
        rows.append(row(problem, f"flash-sinkhorn {name}", timing, gate=error < 0.5, error=error))
    return rows


def exact_hessian_product(x: Tensor, y: Tensor, potentials: Potentials, epsilon: float, direction: Tensor) -> Tensor:
    """The product from a dense float64 plan, its linear system solved by conjugate gradients to 1e-12."""
    x, y, v = x.double(), y.double(), direction.double()
    cost = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T
    plan = ((potentials.f[:, None] + potentials.g - cost) / epsilon).exp_() / len(x) / len(y)
    r, c = plan.sum(1), plan.sum(0)
    own = (x * v).sum(1)
    moved = v @ y.T
    rows = 2 * (own * r - (plan * moved).sum(1))
    columns = 2 * (plan.T @ own - (plan * moved).sum(0))
    right = columns - plan.T @ (rows / r)

    def matvec(g: Tensor) -> Tensor:
        return c[:, None] * g - plan.T @ ((plan @ g) / r[:, None])

    g = conjugate_gradients(matvec, right[:, None], diagonal=c, kernel=torch.ones_like(c), tol=1e-12).x[:, 0]
    f = (rows - plan @ g) / r
    change = (f[:, None] + g - 2 * (own[:, None] - moved)) * plan / epsilon
    return 2 * (change.sum(1)[:, None] * x - change @ y) + 2 * r[:, None] * v
