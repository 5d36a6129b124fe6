"""The divergence to a target that stays where it is: its self term once, the rest from the last potentials.

A cloud that moves a part ``t`` of the way to its target along straight lines keeps its plan, and the target's
potential becomes ``(1 - t) g`` (displacement interpolation; Santambrogio 2015, section 5.4). A solve therefore starts
from that, with half of what this prediction missed by at the last move, and from the moving side's best answer to it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from otdd_flash.cost import DotProductCost
from otdd_flash.ops import Execution, PlanOperator, Problem
from otdd_flash.problems import DistanceOptions
from otdd_flash.sinkhorn import Divergence, SolverOptions, divergence, report_convergence, solve
from otdd_flash.sinkhorn.solver import Solution
from otdd_flash.sinkhorn.terms import Solved, Term, total
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
    epsilon = float(memory["epsilon"]) if memory else options.epsilon_for(cost.mean(0, 1))
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
    operator = execution.operator(cost, problems, epsilon=epsilon, tol=solver.tol)
    initial = _start(operator, epsilon, memory, advance)
    solution = solve(operator, epsilon, solver, terms=[term], initial=initial)
    if initial is not None and not bool(solution.converged.all()):
        solution = solve(operator, epsilon, solver, terms=[term])
    return solution


def _target_term(cost: DotProductCost, epsilon: float, solver: SolverOptions, execution: Execution) -> Memory:
    """Potentials, values and certificate of ``OT(b, b)``."""
    operator = execution.operator(cost, [(1, 1)], epsilon=epsilon, tol=solver.tol)
    solution = solve(operator, epsilon, solver, terms=[Term((0,), (1.0,), part=True)])
    part = solution.solved(0)
    kept = {f"target_{name}": torch.tensor(getattr(part, name)) for name in ("iterations", "converged")}
    for name in ("dual", "primal", "rounding", "marginal_error", "mass"):
        kept[f"target_{name}"] = torch.tensor(getattr(part, name), dtype=torch.float64)
    return {"target_g": solution.potentials(0).f.clone(), **kept}


def _summary(cost: DotProductCost, solution: Solution, kept: Memory) -> Divergence:
    """The divergence with the certificate of all its problems."""
    parts = [solution.solved(p) for p in range(len(solution.dual))]
    if kept:
        held: dict[str, Any] = {field.name: kept[f"target_{field.name}"].item() for field in fields(Solved)}
        parts.append(Solved(**held))
    names = ("cross", "source self", "target self")
    found = total(parts)._replace(iterations=int(solution.iterations.max()))
    return Divergence(
        **found._asdict(), epsilon=solution.epsilon, debiased=bool(kept), potentials=solution.potentials(0),
        self_potentials=(solution.potentials(1).f, kept["target_g"]) if kept else None, cost=cost,
        info=solution.operator.info, operator=solution.operator,
        rho=(solution.options.rho_x, solution.options.rho_y),
        certificates=tuple(
            {"problem": name, **part.certificate()} for name, part in zip(names, parts, strict=False)
        ),
    )  # fmt: skip
