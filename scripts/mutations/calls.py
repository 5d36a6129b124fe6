"""The public functions with a valid tiny call of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

import otdd_flash as otdd
from otdd_flash import data, flows, labels, matrix, plots, reporting, screening, sinkhorn
from otdd_flash.data import features
from otdd_flash.selection.select import SearchOptions
from otdd_flash.sinkhorn.implicit import ImplicitOptions


@dataclass(frozen=True)
class Call:
    """A public function, a valid call of it, and the words that name its arguments.

    Args:
        name: in reports.
        function: the function; its own arguments and defaults are mutated too where the valid call does not give them.
        arguments: makes the valid arguments, anew for every call.
        options: a dataclass whose fields the function takes as further arguments.
        words: other names of an argument in messages.
        leave: arguments that are not mutated.
        raises: further documented errors, which say what they are about in words of their own.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    options: type | None = None
    words: dict[str, Sequence[str]] = field(default_factory=dict)
    leave: tuple[str, ...] = ()
    raises: tuple[type[Exception], ...] = ()

    @cached_property
    def kinds(self) -> dict[str, str]:
        """Annotation of every argument that is mutated."""
        kinds = {}
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                kinds[parameter.name] = str(parameter.annotation)
        kinds |= dict.fromkeys(self.arguments(), "Any") | kinds
        if self.options is not None:
            kinds |= {item.name: str(item.type) for item in fields(self.options)}
        return {name: kind for name, kind in kinds.items() if name not in self.leave and not name.startswith("_")}


# words of messages that say which argument is meant, whatever the function
WORDS = {
    "a": ["weights of x", "weights a"], "b": ["weights of y", "weights b"], "problems": ["pair"],
    "relative_epsilon": ["epsilon"], "feature_weight": ["costs"], "label_weight": ["costs"],
    "label_distance": ["label distance", "label table"], "method": ["label distance", "label_distance", "label table"],
    "datasets": ["data set"], "candidates": ["candidate", "data set"], "target": ["data sets", "sets", "data set"],
    "source": ["data sets", "sets"], "max_samples": ["n_to_select"], "channels": ["mean"],
    "reach_y": ["reach"], "reach_x": ["reach"], "workers": ["datasets"],
    "source_names": ["joint"], "target_names": ["joint"],
    "X": ["features"], "df": ["column"], "features": ["column"], "text": ["column"], "image": ["column"],
    "label": ["column"], "weights": ["column"], "classes": ["class"], "class_names": ["names"], "name": ["data set"],
    "keys": ["items"],
    "dataset": ["items", "zero rows", "features"], "labels": ["y must", "y is"], "design": ["w", "x"],
    "weight": ["costs"], "x": ["costs", "features"], "y": ["costs", "features"], "w": ["x", "costs"],
    "target_embedder": ["embedder"],
}  # fmt: skip


class Kit:
    """Tiny valid arguments, made once; nothing here is changed by a call."""

    @cached_property
    def source(self) -> otdd.LabeledDataset:
        """Twelve points of three classes."""
        return otdd.from_arrays(np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 3, name="first")

    @cached_property
    def target(self) -> otdd.LabeledDataset:
        """Ten points of two classes."""
        return otdd.from_arrays(np.random.default_rng(1).normal(size=(10, 2)) + 0.5, np.arange(10) % 2, name="second")

    @cached_property
    def found(self) -> sinkhorn.Divergence:
        """A converged divergence."""
        tight = sinkhorn.SolverOptions(tol=1e-9, max_iterations=5000)
        return otdd.sinkhorn_divergence(self.source.x, self.target.x, epsilon=1.0, options=tight)

    @cached_property
    def hessian(self) -> otdd.SinkhornHessian:
        """Of it."""
        return otdd.SinkhornHessian(self.found)

    @cached_property
    def result(self) -> otdd.DistanceResult:
        """A distance."""
        return otdd.dataset_distance(self.source, self.target, relative_epsilon=0.1)

    @cached_property
    def plan(self) -> sinkhorn.TransportPlan:
        """Of it."""
        return self.result.plan

    @cached_property
    def values(self) -> otdd.SampleValues:
        """Of the samples of the first set."""
        return otdd.values(self.source, self.target, relative_epsilon=0.1)

    @cached_property
    def selection(self) -> otdd.Selection:
        """Four samples of the first set."""
        return otdd.select(self.source, self.target, 4, search=SearchOptions(steps=3, exchanges=2))

    @cached_property
    def matrix(self) -> otdd.DistanceMatrix:
        """Of four sets."""
        sets = {name: self.source.subset(list(range(i, 8 + i))) for i, name in enumerate("pqrs")}
        return otdd.pairwise(sets, relative_epsilon=0.1)

    @cached_property
    def ranking(self) -> Any:
        """Of one candidate."""
        return otdd.rank([self.source], self.target, bootstrap=0, relative_epsilon=0.1)

    @cached_property
    def check(self) -> otdd.DriftCheck:
        """Holds the first set."""
        return otdd.DriftCheck(self.source, permutations=19, cache=None)

    @cached_property
    def slices(self) -> screening.Slices:
        """Few projections."""
        return screening.Slices.draw([self.source, self.target], projections=5)

    @cached_property
    def frame(self) -> Any:
        """A data frame."""
        import pandas

        rows = np.arange(12)
        return pandas.DataFrame({"a": rows / 12, "b": rows % 3, "w": 1 + rows, "label": rows % 2})

    @cached_property
    def table(self) -> Any:
        """A Hugging Face data set."""
        import datasets

        return datasets.Dataset.from_pandas(self.frame)

    @cached_property
    def torch_set(self) -> torch.utils.data.Dataset:
        """A torch data set."""
        return torch.utils.data.TensorDataset(self.source.x, self.source.y)

    @cached_property
    def pictures(self) -> otdd.LabeledDataset:
        """Small pictures."""
        return otdd.from_arrays(np.arange(8 * 16, dtype=np.uint8).reshape(8, 4, 4), np.arange(8) % 2)


KIT = Kit()


def _sides(**further: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"source": KIT.source, "target": KIT.target, **further}


def _pool(**further: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"pool": KIT.source, "target": KIT.target, **further}


def _points(**further: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": KIT.source.x, "y": KIT.target.x, "epsilon": 1.0, **further}


def _method(name: str, holder: str, method: str, arguments: Callable[[], dict[str, Any]], **settings: Any) -> Call:
    """A method of something in the kit."""
    return Call(name, getattr(getattr(KIT, holder), method), arguments, **settings)


def _class(kind: type, **arguments: Any) -> Call:
    """The constructor of a class of options."""
    return Call(kind.__name__, kind, lambda: dict(arguments))


def _terms() -> otdd.LabelTerm:
    return otdd.LabelTerm(torch.ones(5, 5).fill_diagonal_(0), KIT.source.y, KIT.target.y + 3)


def _minimise(**further: Any) -> dict[str, Any]:
    objective = flows.SinkhornObjective(KIT.target.x, epsilon=1.0, options=sinkhorn.SolverOptions(tol=1e-6))
    return {"objective": objective, "w": KIT.source.x, "method": flows.NewtonCG(max_inner=5), "max_steps": 2, **further}


def _length(item: Any) -> float:
    return float(len(str(item)))


def _problems() -> dict[str, Any]:
    return {"problems": [(KIT.source.x, KIT.target.x), (KIT.target.x, KIT.source.x)], "epsilon": 1.0}


def _selector(**settings: Any) -> Any:
    fitted = otdd.OTDDSelector(**{"n_to_select": 4, "steps": 3, "exchanges": 2, **settings})
    return fitted.fit(KIT.source.x.numpy(), KIT.source.y.numpy(), target=KIT.target)


def _distances() -> Any:
    return otdd.dataset_distance(KIT.source, KIT.target, relative_epsilon=0.1).label_distances


def _plan_methods() -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        "apply": lambda: {"v": torch.ones(10)},
        "apply_transposed": lambda: {"u": torch.ones(12)},
        "map": lambda: {"y": torch.ones(10, 2)},
        "class_coupling": lambda: {"source_labels": KIT.source.y, "target_labels": KIT.target.y},
        "transfer_labels": lambda: {"target_labels": KIT.target.y},
    }


def _rows() -> dict[str, Any]:
    return {"X": KIT.source.x.numpy(), "y": KIT.source.y.numpy()}


def _steppers() -> list[Call]:
    """Each kind of option of a flow, made and used."""
    kinds = {
        "dynamics": (flows.FeatureFlow, flows.TiedFlow, flows.AugmentedFlow),
        "stepper": (flows.Euler, flows.Momentum, flows.LineSearch, flows.TorchOptimizer),
        "projection": (flows.Box, flows.Grid),
    }  # fmt: skip
    return [_class(kind) for group in kinds.values() for kind in group]


@lru_cache
def all_calls() -> tuple[Call, ...]:
    """Every call."""
    distance, checks = otdd.DistanceOptions, otdd.CheckOptions
    return (
        Call("dataset_distance", otdd.dataset_distance, _sides(), distance),
        Call("differentiable_distance", otdd.differentiable_distance, _sides(), distance),
        Call("gradient_flow", otdd.gradient_flow, _sides(steps=2, dynamics=flows.FeatureFlow(), stepper=flows.Euler(),
                                                         projection=None, seed=0)),
        Call("sliced_distance", otdd.sliced_distance, _sides(projections=5, quantiles=7)),
        Call("moment_distance", otdd.moment_distance, _sides(label_distance="means", feature_weight=1.0,
                                                             label_weight=1.0, relative_epsilon=0.1)),
        Call("moment_distances", screening.moment_distances, lambda: {"datasets": [KIT.source, KIT.target]}),
        Call("screening_matrix", otdd.screening_matrix, lambda: {"datasets": [KIT.source, KIT.target], "quantiles": 7,
                                                                 "projections": 5, "moments": 3, "seed": 0}),
        Call("screen_then_refine", otdd.screen_then_refine,
             lambda: {"items": [5, -3, 1], "screen": _length, "refine": _length, "keep": 2}),
        Call("Slices.draw", screening.Slices.draw, lambda: {"datasets": [KIT.source], "projections": 5}),
        Call("Slices.around", screening.Slices.around,
             lambda: {"center": torch.zeros(2, dtype=torch.float64), "spread": 1.0, "projections": 5}),
        _method("Slices.project", "slices", "project", lambda: {"dataset": KIT.source}),
        _method("Slices.summary", "slices", "summary", lambda: {"dataset": KIT.source, "quantiles": 7}),
        Call("sinkhorn_divergence", otdd.sinkhorn_divergence, _points(a=torch.ones(12), b=torch.ones(10))),
        Call("sinkhorn_batch", otdd.sinkhorn_batch, _problems),
        Call("differentiable_divergence", otdd.differentiable_divergence,
             lambda: {**_points(a=torch.ones(12), b=torch.ones(10))(), "labels": _terms()},
             words={"x": ["a", "x_labels"], "y": ["b", "y_labels"]}),
        Call("LabelTerm", lambda table, x_labels, y_labels, weight: otdd.differentiable_divergence(
            KIT.source.x, KIT.target.x, epsilon=1.0, labels=otdd.LabelTerm(table, x_labels, y_labels, weight)),
            lambda: {**vars(_terms())}),
        Call("SinkhornHessian", otdd.SinkhornHessian, lambda: {"found": KIT.found}),
        _method("SinkhornHessian @", "hessian", "__matmul__", lambda: {"v": torch.ones(12, 2)}),
        _method("SinkhornHessian.solve", "hessian", "solve", lambda: {"right": torch.ones(24), "tikhonov": 1.0,
                                                                      "max_iterations": 5}),
        _method("SinkhornHessian.extreme_eigenvalues", "hessian", "extreme_eigenvalues",
                lambda: {"max_steps": 5, "start": torch.ones(24)}),
        Call("minimise", flows.minimise, _minimise),
        Call("SinkhornObjective", lambda **given: flows.SinkhornObjective(**given)(KIT.source.x),
             lambda: {"y": KIT.target.x, "epsilon": 1.0, "a": torch.ones(12), "b": torch.ones(10), "labels": None,
                      "debiased": True, "options": sinkhorn.SolverOptions(), "execution": sinkhorn.Execution()},
             words={"y": ["x", "costs"]}),
        Call("LinearPullback", lambda **given: flows.LinearPullback(**given)(torch.ones(3, 2, dtype=torch.float64)),
             lambda: {"objective": _minimise()["objective"], "design": torch.ones(12, 3, dtype=torch.float64)}),
        *(_class(kind) for kind in (flows.Adam, flows.NewtonCG, flows.TrustRegion, flows.AdamNewton)),
        *_steppers(),
        Call("Noisy", flows.Noisy, lambda: {"stepper": flows.Euler(), "temperature": 0.1}),
        Call("JointFlow", flows.JointFlow, lambda: {"target": KIT.target}),
        _class(flows.Clustering), _class(flows.EarlyStopping), _class(flows.Trajectory, folder="out"),
        _class(flows.SaveCheckpoint, path="out.safetensors"), _class(flows.Metrics, path="out.csv"),
        _class(flows.ImageGrid, folder="out"), _class(flows.Animation, path="out.gif", folder="out"),
        _class(flows.TensorBoard, folder="out"),
        Call("Scatter", flows.Scatter, lambda: {"target": KIT.target, "folder": "out"}),
        Call("TransferCheck", flows.TransferCheck, lambda: {"source": KIT.source, "target": KIT.target}),
        Call("transfer_check", flows.transfer_check,
             lambda: {"source": KIT.source, "flowed": KIT.source, "target": KIT.target, "test": KIT.target}),
        Call("DatasetTransport", flows.DatasetTransport, lambda: {"target": KIT.target}),
        Call("feature_transport", flows.feature_transport, lambda: {"target": KIT.target}, distance,
             leave=("label_distance",)),
        Call("PotentialEnergy", flows.PotentialEnergy, lambda: {"potential": lambda x: x.square().sum(1)}),
        Call("InteractionEnergy", flows.InteractionEnergy, lambda: {"kernel": torch.cdist}),
        Call("InternalEnergy", flows.InternalEnergy, lambda: {"functional": lambda x, a: x.sum()}),
        Call("Flow", flows.Flow, lambda: {"objective": flows.DatasetTransport(KIT.target)}),
        Call("Flow.run", lambda **given: flows.Flow(flows.DatasetTransport(KIT.target)).run(**given),
             lambda: {"source": KIT.source, "steps": 1, "callbacks": (), "resume": None}),
        Call("Checkpoint.load", flows.Checkpoint.load, lambda: {"path": "none.safetensors"}, raises=(OSError,)),
        Call("values", otdd.values, _pool(), distance),
        _method("SampleValues.scores", "values", "scores", dict),
        _method("SampleValues.order", "values", "order", dict),
        _method("SampleValues.mislabelled", "values", "mislabelled", lambda: {"count": 2}),
        _method("SampleValues.by_class", "values", "by_class", dict),
        _method("SampleValues.write", "values", "write", lambda: {"path": "out.jsonl"}, raises=(OSError,)),
        Call("select", otdd.select, _pool(n_to_select=4, search=SearchOptions(steps=3, exchanges=2)), distance),
        _class(SearchOptions),
        _method("Selection.rows", "selection", "rows", dict),
        _method("Selection.torch_subset", "selection", "torch_subset", lambda: {"dataset": KIT.torch_set}),
        _method("Selection.huggingface", "selection", "huggingface", lambda: {"dataset": KIT.table},
                leave=("dataset",)),
        _method("Selection.write", "selection", "write", lambda: {"path": "out.jsonl"}, raises=(OSError,)),
        Call("OTDDSelector", _selector, lambda: {"n_to_select": 4, "balance": None, "label_weight": 1.0,
             "label_distance": "gaussian_diag", "relative_epsilon": 0.1, "steps": 3, "exchanges": 2}),
        Call("OTDDSelector.fit", lambda **given: otdd.OTDDSelector(4, steps=3, exchanges=2).fit(**given),
             lambda: {**_rows(), "target": KIT.target.x.numpy(), "target_y": KIT.target.y.numpy()},
             words={"y": ["X"], "target_y": ["target"], "target": ["pool"]}),
        Call("rank", otdd.rank, lambda: {"candidates": [KIT.source], "target": KIT.target, "bootstrap": 0}, distance),
        Call("pairwise", otdd.pairwise, lambda: {"datasets": [KIT.source, KIT.target]}, distance, leave=("workers",)),
        Call("pairwise (workers)", lambda workers: otdd.pairwise([], workers=workers), dict),
        Call("collect", matrix.collect, lambda: {"folder": "none"}, raises=(OSError,)),
        _class(otdd.Screen),
        _method("DistanceMatrix.distance", "matrix", "distance", lambda: {"first": "p", "second": "q"},
                raises=(KeyError,)),
        _method("DistanceMatrix.matrix", "matrix", "matrix", dict),
        _method("DistanceMatrix.subset", "matrix", "subset", lambda: {"names": ["p", "q"]}, raises=(KeyError,)),
        _method("DistanceMatrix.dendrogram", "matrix", "dendrogram", dict),
        _method("DistanceMatrix.mds", "matrix", "mds", dict),
        _method("DistanceMatrix.tsne", "matrix", "tsne", dict),
        _method("DistanceMatrix.to_json", "matrix", "to_json", lambda: {"path": "out.json"}, raises=(OSError,)),
        _method("DistanceMatrix.to_parquet", "matrix", "to_parquet", lambda: {"path": "o.parquet"}, raises=(OSError,)),
        Call("check", otdd.check, lambda: {"reference": KIT.source, "batch": KIT.target, "permutations": 19,
                                           "cache": None}, checks),
        _class(checks),
        Call("assert_same_distribution", otdd.assert_same_distribution,
             lambda: {"reference": KIT.source, "batch": KIT.source, "permutations": 19, "cache": None}, checks,
             raises=(otdd.DistributionShiftError,)),
        Call("DriftCheck.update", lambda **given: otdd.DriftCheck(KIT.source, cache=None).update(**given),
             lambda: {"x": KIT.target.x, "y": KIT.target.y, "class_names": None},
             words={"x": ["X", "batch"], "y": ["X and y", "labels"]}),
        Call("DriftCallback", otdd.DriftCallback, lambda: {"check": KIT.check}),
        _class(otdd.MicrosoftConvention), _class(sinkhorn.SolverOptions), _class(sinkhorn.Execution),
        _class(ImplicitOptions), _class(labels.LabelSinkhorn), _class(labels.ClassNames, embedder=len),
        _class(otdd.DistanceOptions),
        Call("SamplesLoss", lambda **given: otdd.SamplesLoss(**given)(KIT.source.x, KIT.target.x),
             lambda: {name: p.default for name, p in inspect.signature(otdd.SamplesLoss).parameters.items()}),
        Call("SamplesLoss.forward", lambda a, x, b, y: otdd.SamplesLoss()(a, x, b, y),
             lambda: {"a": torch.ones(12) / 12, "x": KIT.source.x, "b": torch.ones(10) / 10, "y": KIT.target.x},
             words={"x": ["weights a", "points"], "y": ["weights b", "points"], "a": ["masses"], "b": ["masses"]}),
        *(_method(f"TransportPlan.{name}", "plan", name, arguments) for name, arguments in _plan_methods().items()),
        Call("label_distances", labels.label_distances, _sides()),
        Call("LabelDistances.from_joint", labels.LabelDistances.from_joint, lambda: {
            "joint": torch.ones(3, 3).fill_diagonal_(0), "source_names": ("a",), "target_names": ("b", "c"),
            "method": "own"}),
        Call("LabelDistances.to_safetensors", lambda path: _distances().to_safetensors(path), lambda: {"path": "t.st"},
             raises=(OSError,)),
        Call("LabelDistances.from_safetensors", labels.LabelDistances.from_safetensors, lambda: {"path": "none"},
             raises=(OSError,)),
        Call("from_arrays", otdd.from_arrays, lambda: {**_rows(), "weights": np.ones(12)},
             words={"y": ["labels", "rows"]}),
        Call("from_dataframe", otdd.from_dataframe, lambda: {"df": KIT.frame, "label": "label", "weights": "w"}),
        Call("from_huggingface", otdd.from_huggingface, lambda: {"ds": KIT.table, "features": ["a", "b"]}),
        Call("from_torch", otdd.from_torch, lambda: {"dataset": KIT.torch_set}),
        Call("load", otdd.load, lambda: {"name": "iris", "max_samples": 12, "download": False}, raises=(OSError,)),
        Call("subsample", data.subsample, lambda: {"dataset": KIT.source, "max_samples": 5}),
        _class(features.Batching), _class(features.PicturePreprocess),
        Call("Features.apply", lambda source, target: features.Features().apply(source, target), _sides(),
             words={"source": ["features", "texts"], "target": ["features", "texts"]}),
        Call("Features", lambda **given: features.Features(**given).apply(KIT.source, KIT.target),
             lambda: {"embedder": "raw", "target_embedder": None, "picture_size": None, "scaling": "standardize",
                      "fit_on": "both", "mean": None, "std": None, "batching": features.Batching(), "cache": None}),
        Call("Pca", lambda n_components: features.Pca(n_components).fitted(KIT.source), lambda: {"n_components": 1}),
        Call("table_pair", features.table_pair, lambda: {"source": KIT.frame, "target": KIT.frame, "label": "label"}),
        Call("LabeledDataset", lambda **given: otdd.LabeledDataset(**given).n, options=otdd.LabeledDataset,
             arguments=lambda: {"x": KIT.source.x, "y": KIT.source.y, "class_names": ("a", "b", "c")},
             words={"x": ["y"]}),
        _method("LabeledDataset.to", "source", "to", lambda: {"device": "cpu"}),
        Call("report", otdd.report, lambda: {"results": KIT.result, "path": "page.html"}, raises=(OSError,)),
        Call("render", reporting.render, lambda: {"results": [KIT.result, KIT.values]}, raises=(OSError,)),
        *(Call(f"plots.{function.__name__}", function, lambda: {"matrix": KIT.matrix})
          for function in (plots.heat_map, plots.dendrogram, plots.set_map)),
        *(Call(f"plots.{function.__name__}", function, lambda table=table: {
            table: torch.ones(2, 3), "source_names": ["a", "b"], "target_names": ["c", "d", "e"]})
          for table, function in (("coupling", plots.class_coupling), ("table", plots.class_distances))),
        Call("plots.value_histogram", plots.value_histogram, lambda: {"scores": torch.arange(5.0)}),
    )  # fmt: skip
