"""``otdd bench``: how fast the solver is on this machine; ``tune=true`` refines the kernels' configuration."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otdd_flash import __version__
from otdd_flash.cli.config import BenchConfig
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_bytes
from otdd_flash.cli.tasks import Job
from otdd_flash.cost import DotProductCost, PointCloud
from otdd_flash.ops.api import triton_missing
from otdd_flash.sinkhorn import Divergence, Execution, SolverOptions, divergence

_PROBLEMS = [(0, 1), (0, 0), (1, 1)]


def run(config: BenchConfig, job: Job) -> None:
    """Time, tune where asked, print."""
    check_format(config.output.format)
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check(config, device)
    record: dict[str, Any] = {
        "task": "bench",
        "device": str(device),
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": {"otdd_flash": __version__, "torch": str(torch.__version__)},
        "n": config.n,
        "m": config.m or config.n,
        "d": config.d,
        "seed": config.seed,
    }
    if config.tune:
        record["tuning"] = tune(config, device)
    record.update(measure(config, device))
    deliver(Finished(record, "otdd bench", table_rows(record), "bench.json"), config.output, job)


def measure(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    """Seconds of whole solves, from tensors to a certified value, and of one debiased iteration."""
    clouds = [PointCloud(points, _uniform(len(points), device)) for points in _points(config, device)]
    cost = DotProductCost.build(clouds)
    solver = config.solver
    epsilon = solver.epsilon if solver.epsilon is not None else solver.relative_epsilon * cost.mean(0, 1)
    execution = Execution(solver.backend, solver.precision, solver.memory, solver.memory_budget)  # type: ignore[arg-type]
    options = SolverOptions(tol=solver.tol, max_iterations=solver.max_iterations)

    def solve() -> Divergence:
        fresh = DotProductCost.build(clouds)
        return divergence(fresh, epsilon, debiased=solver.debiased, options=options, execution=execution)

    first, found = _seconds(solve, device)
    times = sorted(_seconds(solve, device)[0] for _ in range(config.repeats))
    operator = execution.operator(cost, _PROBLEMS if solver.debiased else _PROBLEMS[:1], epsilon=epsilon)
    f, g = torch.zeros_like(operator.a), torch.zeros_like(operator.b)
    passes = [_seconds(lambda: operator.marginals(f, g, epsilon), device)[0] for _ in range(config.repeats + 1)][1:]
    return {
        "epsilon": epsilon, "debiased": solver.debiased, "backend": found.info.backend,
        "precision": found.info.precision, "memory": found.info.memory, "bytes": found.info.bytes,
        "seconds": {
            "first_solve": first, "solve": statistics.median(times), "fastest": times[0], "slowest": times[-1],
            "iteration": statistics.median(passes),
        },
        "value": found.value, "converged": found.converged, "marginal_error": found.marginal_error,
        "iterations": found.iterations,
    }  # fmt: skip


def tune(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    """Search for each precision; what was chosen, and the file that keeps it."""
    from otdd_flash.ops import choices
    from otdd_flash.ops.refine import refine

    found = [
        refine(mode, n=config.n, features=config.d, seconds=config.tune_seconds, device=device, seed=config.seed)
        for mode in config.tune_modes
    ]
    return {"file": str(choices.path_of(device)), "searches": [one.to_dict() for one in found]}


def table_rows(record: dict[str, Any]) -> list[Row]:
    """The table on stdout."""
    seconds = record["seconds"]
    rows = [
        ("device", f"{record['device']} ({record['name']}), {record['threads']} threads"),
        ("clouds", f"{record['n']} and {record['m']} points, {record['d']} features"),
        ("mode", f"{record['backend']}, {record['precision']}, {record['memory']}, {format_bytes(record['bytes'])}"),
        ("solve", f"{_time(seconds['solve'])} ({_time(seconds['fastest'])} to {_time(seconds['slowest'])})"),
        ("first solve", _time(seconds["first_solve"])),
        ("iteration", _time(seconds["iteration"])),
        ("iterations", str(record["iterations"])),
        ("converged", f"{'yes' if record['converged'] else 'no'}, marginal error {record['marginal_error']:.1e}"),
    ]
    for search in record.get("tuning", {}).get("searches", []):
        change = f"{search['table_ms']:.3f} ms by the table, {search['chosen_ms']:.3f} ms chosen"
        rows.append((f"tuned {search['mode']}", f"{change}, {search['trials']} configurations"))
    if "tuning" in record:
        rows.append(("kept in", record["tuning"]["file"]))
    return rows


def _check(config: BenchConfig, device: torch.device) -> None:
    """Refuse what cannot be measured before anything is."""
    for name in ("n", "d", "repeats"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(config, name)}")
    if config.m is not None and config.m < 1:
        raise ValueError(f"m must be at least 1, got {config.m}")
    if config.tune:
        reason = triton_missing()
        if reason is not None or device.type != "cuda":
            raise ValueError(f"tune=true needs a CUDA device: {reason or f'device is {device}'}")


def _points(config: BenchConfig, device: torch.device) -> list[Tensor]:
    """Two clouds a little apart."""
    clouds = []
    for k, n in enumerate((config.n, config.m or config.n)):
        generator = torch.Generator().manual_seed(config.seed + k)
        if config.levels:
            points = torch.randint(0, 256 - 16 * k, (n, config.d), generator=generator) / 255
        else:
            points = torch.randn(n, config.d, generator=generator) + 0.1 * k
        clouds.append(points.to(device))
    return clouds


def _uniform(n: int, device: torch.device) -> Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64, device=device)


def _seconds(run: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Wall time of a call to its last kernel, and its result."""
    start = time.perf_counter()
    result = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def _time(seconds: float) -> str:
    """Three digits in the unit that fits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
