"""Shuffled linear regression: find ``W`` from ``X`` and ``Y = X W + noise`` whose rows have lost their order.

The Sinkhorn divergence between the rows of ``X W`` and those of ``Y`` is minimised over ``W``. It is not convex: there
are local minima, and ``W = 0`` is a saddle wherever ``X`` is centred, because all predictions then coincide. Adam alone
is compared with the hybrid, which watches the smallest eigenvalue of the Hessian, leaves saddles and ends with a trust
region, from the same starts: a random one for every seed, and zero.

    python scripts/shuffled_regression.py --seeds 20 --output shuffled.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor

from otdd_flash.flows import Adam, AdamNewton, LinearPullback, Method, SinkhornObjective, TrustRegion, minimise
from otdd_flash.sinkhorn import SolverOptions

METHODS = ("adam", "hybrid")
SOLVER = SolverOptions(tol=1e-7, max_iterations=5000)


def problem(seed: int, args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """``X (n, p)`` with columns of mean zero, shuffled ``Y (n, q)``, and the true ``W (p, q)``."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X, W = draw(args.n, args.p), draw(args.p, args.q)
    X = X - X.mean(0)
    Y = X @ W + args.noise * draw(args.n, args.q)
    return X, Y[torch.randperm(args.n, generator=generator)], W


def start(kind: str, seed: int, args: argparse.Namespace) -> Tensor:
    if kind == "zero":
        return torch.zeros(args.p, args.q, dtype=torch.float64)
    generator = torch.Generator().manual_seed(10_000 + seed)
    return torch.randn(args.p, args.q, generator=generator, dtype=torch.float64)


def method(name: str, args: argparse.Namespace) -> Method:
    adam = Adam(lr=args.lr, tol=args.tol)
    return adam if name == "adam" else AdamNewton(adam=adam, newton=TrustRegion(radius=0.5, tol=args.tol))


def run(kind: str, seed: int, args: argparse.Namespace) -> list[dict]:
    """Both methods from one start."""
    X, Y, W = problem(seed, args)
    epsilon = args.relative_epsilon * float(torch.cdist(Y, Y).square().mean())
    truth = LinearPullback(SinkhornObjective(Y, epsilon, options=SOLVER), X)(W).value
    records = []
    for name in METHODS:
        solves, began = SinkhornObjective(Y, epsilon, options=SOLVER), time.perf_counter()
        found = minimise(LinearPullback(solves, X), start(kind, seed, args), method(name, args), max_steps=args.steps)
        records.append({
            "start": kind, "seed": seed, "method": name, "loss": found.value, "loss_of_truth": truth,
            "gradient_norm": found.gradient_norm, "error": float((found.w - W).norm() / W.norm()),
            "solves": solves.solves,
            "steps": found.steps, "seconds": time.perf_counter() - began, "converged": found.converged,
            "saddles_left": found.count("escape"),
            "smallest_eigenvalue": None if math.isnan(found.curvature) else found.curvature,
        })  # fmt: skip
    return records


def table(records: list[dict], kind: str, tie: float = 1e-6) -> list[str]:
    """One line a seed, then the summary."""
    head = f"{'seed':>4}  {'truth':>9}" + "".join(f"  {m + ' loss':>12} {'|grad|':>8} {'solves':>6}" for m in METHODS)
    lines = [f"start: {kind}", head + "  saddles left  smallest eigenvalue  lower"]
    pairs = list(zip(*([r for r in records if r["start"] == kind and r["method"] == m] for m in METHODS), strict=True))
    counts = {"hybrid": 0, "adam": 0, "equal": 0}
    for adam, hybrid in pairs:
        difference = adam["loss"] - hybrid["loss"]
        margin = tie * (1.0 + abs(adam["loss"]))
        winner = "equal" if abs(difference) <= margin else "hybrid" if difference > 0 else "adam"
        counts[winner] += 1
        cells = "".join(f"  {r['loss']:12.6f} {r['gradient_norm']:8.1e} {r['solves']:6d}" for r in (adam, hybrid))
        curvature = hybrid["smallest_eigenvalue"]
        lines.append(
            f"{adam['seed']:>4}  {adam['loss_of_truth']:9.6f}{cells}  {hybrid['saddles_left']:12d}  "
            f"{'':>19}  {winner}" if curvature is None else
            f"{adam['seed']:>4}  {adam['loss_of_truth']:9.6f}{cells}  {hybrid['saddles_left']:12d}  "
            f"{curvature:19.2e}  {winner}"
        )  # fmt: skip
    for position, name in enumerate(METHODS):
        rows = [pair[position] for pair in pairs]
        losses = [row["loss"] for row in rows]
        lines.append(
            f"{name:>6}: mean loss {mean(losses):.6f}, median {median(losses):.6f}, "
            f"at or below the truth's loss {sum(row['loss'] <= row['loss_of_truth'] for row in rows)}/{len(rows)}, "
            f"converged {sum(row['converged'] for row in rows)}/{len(rows)}, "
            f"solves {sum(row['solves'] for row in rows)}, {sum(row['seconds'] for row in rows):.1f} s"
        )
    verdict = f"hybrid lower {counts['hybrid']}, equal within {tie:g} {counts['equal']}, adam lower {counts['adam']}"
    return [*lines, f"{verdict}; saddles left {sum(pair[1]['saddles_left'] for pair in pairs)}", ""]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="problems and starts")
    parser.add_argument("--n", type=int, default=40, help="rows")
    parser.add_argument("--p", type=int, default=3, help="inputs")
    parser.add_argument("--q", type=int, default=2, help="outputs")
    parser.add_argument("--noise", type=float, default=0.05, help="standard deviation")
    parser.add_argument("--relative-epsilon", type=float, default=0.1, help="of the mean squared distance within Y")
    parser.add_argument("--lr", type=float, default=0.05, help="Adam's step, alone and in the hybrid")
    parser.add_argument("--steps", type=int, default=200, help="limit of steps of either method")
    parser.add_argument("--tol", type=float, default=1e-6, help="gradient norm at which either method stops")
    parser.add_argument("--starts", nargs="+", choices=("random", "zero"), default=["random", "zero"])
    parser.add_argument("--output", type=Path, help="JSON file of all runs")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.set_num_threads(1)
    records = []
    for kind in args.starts:
        for seed in range(args.seeds):
            records += run(kind, seed, args)
            print(f"{kind} start, seed {seed} done", file=sys.stderr)
        print("\n".join(table(records, kind)))
    if args.output is not None:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
        args.output.write_text(json.dumps({"settings": settings, "runs": records}, indent=2, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
