"""The divergence to a target that stays where it is: its self term once, the rest from the last potentials.

A cloud that moves a part ``t`` of the way to its target along straight lines keeps its plan, and the target's
potential becomes ``(1 - t) g`` (displacement interpolation; Santambrogio 2015, section 5.4). A solve therefore starts
from that, with half of what this prediction missed by at the last move, and from the moving side's best answer to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.distance import DistanceOptions
from otdd_flash.ops import PlanOperator, Problem, make_operator
from otdd_flash.sinkhorn import Divergence, Execution, SolverOptions, divergence, report_convergence, solve
from otdd_flash.sinkhorn.divergence import rounding_of
from otdd_flash.sinkhorn.solver import Solution
from otdd_flash.sinkhorn.terms import Term, combine
from otdd_flash.types import Potentials

Memory = dict[str, Tensor]
_TRUST = 0.5  # in how a prediction was wrong being how the next one will be


def solve_to_target(
    cost: DotProductCost, options: DistanceOptions, memory: Memory, *, advance: float = 0.0
) -> tuple[Divergence, Memory]:
    """The divergence over the clouds (moving, target), and what the next solve can start from.

    Args:
        cost: two clouds; the second and its own label table are those of the earlier calls.
        options: epsilon, tolerances, precision.
        memory: empty, or as returned by the last call.
        advance: the part of the way to the target that the cloud has moved since then, roughly.

    Raises:
        OverflowError: costs too large for their precision at this epsilon.
    """
    epsilon = float(memory["epsilon"]) if memory else _epsilon(cost, options)
    _refuse_unresolved(cost, epsilon)
    solver, execution = options.solver(cost.device), options.execution()
    x, y = cost.clouds
    if x.points.shape == y.points.shape and torch.equal(x.points, y.points):
        found = divergence(cost, epsilon, debiased=options.debiased, options=solver, execution=execution)
        return found, {**memory, "epsilon": torch.tensor(epsilon, dtype=torch.float64)}
    kept = {key: value for key, value in memory.items() if key.startswith("target_")}
    if options.debiased and not kept:
        kept = _target_term(cost, epsilon, solver, execution)
    solution = _solve(cost, epsilon, solver, execution, memory, advance, kept)
    found = _summary(cost, solution, kept)
    report_convergence(found.status, solver, strict=options.strict)
    return found, {**kept, **_remembered(found, memory, advance)}


def _remembered(found: Divergence, memory: Memory, advance: float) -> Memory:
    """What the next solve starts from: potentials, and by how much the prediction of the target's one was wrong."""
    warm = {
        "epsilon": torch.tensor(found.epsilon, dtype=torch.float64), "f": found.potentials.f, "g": found.potentials.g,
    }  # fmt: skip
    if found.self_potentials is not None:
        warm["f_self"] = found.self_potentials[0]
    if advance > 0 and "g" in memory:
        warm["missed"] = found.potentials.g - (1 - advance) * memory["g"]
        warm["missed_at"] = torch.tensor(advance, dtype=torch.float64)
    elif "missed" in memory:
        warm |= {key: memory[key] for key in ("missed", "missed_at")}
    return warm


def _refuse_unresolved(cost: DotProductCost, epsilon: float) -> None:
    """Refuse clouds so far apart that rounding of the costs drowns epsilon: no number would mean anything."""
    largest, dtype = cost.bound(0, 1), cost.clouds[0].points.dtype
    if not largest * torch.finfo(dtype).eps < epsilon:
        raise OverflowError(f"costs up to {largest:.1e} cannot be resolved at epsilon {epsilon:.1e} in {dtype}")


def _epsilon(cost: DotProductCost, options: DistanceOptions) -> float:
    if options.epsilon is not None:
        return options.epsilon
    mean_cost = cost.mean(0, 1)
    return options.relative_epsilon * mean_cost if mean_cost > 0 else 1.0


def _start(operator: PlanOperator, epsilon: float, memory: Memory, advance: float) -> list[Potentials] | None:
    """Potentials of the last solve, or what they have become by now."""
    if "f" not in memory:
        return None
    f, g = memory["f"], memory["g"]
    if advance > 0:
        g = (1 - advance) * g
        if "missed" in memory:
            g = g + _TRUST * min(advance / float(memory["missed_at"]), 1.0) * memory["missed"]
        columns = torch.zeros_like(operator.b)
        columns[0] = operator.pack_columns(g, 0)
        f = operator.unpack_rows(operator.softmin(columns, epsilon, side="rows")[0], 0)
    cross = [Potentials(f, g)]
    return [*cross, Potentials(memory["f_self"], memory["f_self"])] if len(operator.problems) > 1 else cross


def _solve(
    cost: DotProductCost, epsilon: float, solver: SolverOptions, execution: Execution, memory: Memory, advance: float,
    kept: Memory,
) -> Solution:  # fmt: skip
    """The cross problem and the moving cloud's own; from the start where a warm start leads nowhere."""
    problems: list[Problem] = [(0, 1), (0, 0)] if kept else [(0, 1)]
    term = Term.of(0, range(1, len(problems)), offset=-float(kept["target_dual"]) / 2 if kept else 0.0)
    operator = make_operator(
        cost, problems, epsilon=epsilon, backend=execution.backend, precision=execution.precision,
        memory=execution.memory, memory_budget=execution.memory_budget, deterministic=execution.deterministic,
        tol=solver.tol,
    )  # fmt: skip
    initial = _start(operator, epsilon, memory, advance)
    solution = solve(operator, epsilon, solver, terms=[term], initial=initial)
    if initial is not None and not bool(solution.converged.all()):
        solution = solve(operator, epsilon, solver, terms=[term])
    return solution


def _target_term(cost: DotProductCost, epsilon: float, solver: SolverOptions, execution: Execution) -> Memory:
    """Potentials, values and certificate of ``OT(b, b)``."""
    operator = make_operator(
        cost, [(1, 1)], epsilon=epsilon, backend=execution.backend, precision=execution.precision,
        memory=execution.memory, memory_budget=execution.memory_budget, deterministic=execution.deterministic,
        tol=solver.tol,
    )  # fmt: skip
    solution = solve(operator, epsilon, solver, terms=[Term((0,), (1.0,), part=True)])
    return {
        "target_g": solution.potentials(0).f.clone(),
        "target_dual": solution.dual[0].clone(),
        "target_primal": solution.primal[0].clone(),
        "target_rounding": torch.tensor(rounding_of(solution, Term((0,), (-0.5,))), dtype=torch.float64),
        "target_error": solution.marginal_error[0].clone(),
        "target_iterations": solution.iterations[0].clone(),
        "target_converged": solution.converged[0].clone(),
    }


def _summary(cost: DotProductCost, solution: Solution, kept: Memory) -> Divergence:
    """The divergence with the certificate of all its problems."""
    names = ["cross", "source self", "target self"]
    columns = {
        "dual": solution.dual, "primal": solution.primal, "marginal_error": solution.marginal_error,
        "iterations": solution.iterations, "converged": solution.converged,
    }  # fmt: skip
    if kept:
        theirs = ("target_dual", "target_primal", "target_error", "target_iterations", "target_converged")
        columns = {
            name: torch.cat([column, kept[key].reshape(1).to(column)])
            for (name, column), key in zip(columns.items(), theirs, strict=True)
        }
    count = len(columns["dual"])
    bounds = combine(Term.of(0, range(1, count)), columns["dual"], columns["primal"])
    cross = solution.potentials(0)
    rounding = rounding_of(solution, Term.of(0, range(1, len(solution.dual)))) + (
        float(kept["target_rounding"]) if kept else 0.0
    )
    certificates = [
        {"problem": name, **{key: column[p].item() for key, column in columns.items()}}
        for p, name in enumerate(names[:count])
    ]
    return Divergence(
        value=bounds.value, primal=bounds.primal, gap=bounds.gap, rounding=rounding, error=bounds.error + rounding,
        marginal_error=float(columns["marginal_error"].max()), iterations=int(solution.iterations.max()),
        converged=bool(columns["converged"].all()), epsilon=solution.epsilon, debiased=bool(kept), potentials=cross,
        self_potentials=(solution.potentials(1).f, kept["target_g"]) if kept else None, cost=cost,
        info=solution.operator.info, certificates=tuple(certificates), operator=solution.operator,
        rho=(solution.options.rho_x, solution.options.rho_y),
    )  # fmt: skip
