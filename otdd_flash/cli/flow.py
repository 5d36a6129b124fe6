"""``otdd flow``: move one labelled data set towards another, with metrics, pictures and checkpoints."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from otdd_flash.cli.data import load_side, make_features, side_title
from otdd_flash.cli.flow_config import FlowConfig, StepperConfig
from otdd_flash.cli.labels import label_arguments
from otdd_flash.cli.output import Finished, Row, check_format, deliver, format_seconds
from otdd_flash.cli.tasks import Job
from otdd_flash.cli.termination import termination_as_exit
from otdd_flash.distance import DistanceOptions
from otdd_flash.types import LabeledDataset

if TYPE_CHECKING:
    from otdd_flash.flows import Callback, Dynamics, Flow, FlowResult, Projection, Stepper
    from otdd_flash.flows.transfer import TransferCheck

log = logging.getLogger("otdd")

_SETTINGS = "settings.json"
_CHECKPOINT = "checkpoint.safetensors"
_METRICS = "metrics.csv"
_FREE_ON_RESUME = ("resume", "steps", "output", "progress", "hydra")


def run(config: FlowConfig, job: Job) -> None:
    """Run or continue a flow and say where it ended.

    Raises:
        StepRefusedError: a step led to values that are not finite; the folder holds the last good state.
        ValueError: the folder is that of another flow.
    """
    check_format(config.output.format)
    folder = job.folder if config.resume is None else Path(config.resume)
    with _alone(folder):
        _run(config, job, folder)


def _run(config: FlowConfig, job: Job, folder: Path) -> None:
    from otdd_flash.flows import Checkpoint
    from otdd_flash.tensor_files import write_record

    resume = None
    if config.resume is not None:
        config = _earlier_settings(config, folder)
        resume = Checkpoint.load(folder / _CHECKPOINT)
    else:
        _check_unused(folder)
        write_record(asdict(config), folder / _SETTINGS)
    start = time.perf_counter()
    source, target, test = _load(config)
    flow = _flow(config, source, target)
    check = _transfer_check(config, flow, source, target, test)
    callbacks = [*_callbacks(config, folder, source, target), *([check] if check else [])]
    with _resumable(folder, kept=config.output.files or config.resume is not None):
        result = flow.run(source, steps=config.steps, callbacks=callbacks, resume=resume)
    record = _record(config, result, check, time.perf_counter() - start, folder)
    title = f"{side_title(source, config.source)} -> {side_title(target, config.target)}"
    files = {"flowed.safetensors": partial(_save, result.data)}
    deliver(Finished(record, title, _rows(record), files=files), config.output, replace(job, folder=folder))


@contextmanager
def _resumable(folder: Path, *, kept: bool) -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM likewise, say how to go on from the last checkpoint."""
    with termination_as_exit():
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as stop:
            if not (kept and (folder / _CHECKPOINT).exists()):
                raise
            advice = f"otdd flow {shlex.quote(f'resume={folder}')} goes on from the last checkpoint"
            if isinstance(stop, KeyboardInterrupt):
                raise KeyboardInterrupt(advice) from None
            log.warning("terminated: %s", advice)
            raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process, where the system has such locks.

    Raises:
        ValueError: another flow holds it.
    """
    if not folder.is_dir() or importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another flow is running in {folder}: give this one another folder with hydra.run.dir=FOLDER, or wait "
                f"for its end and continue it with resume={folder}"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def _check_unused(folder: Path) -> None:
    """Refuse to mix a new flow's files with those of an earlier one."""
    found = [name for name in (_CHECKPOINT, _METRICS) if (folder / name).exists()]
    if found:
        raise ValueError(
            f"{folder} holds another flow already ({', '.join(found)}): continue it with resume={folder}, or give "
            "this one another folder with hydra.run.dir=FOLDER"
        )


def _earlier_settings(config: FlowConfig, folder: Path) -> FlowConfig:
    """The settings of the run in ``folder``, with the steps of this one where they are given."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from otdd_flash.tensor_files import read_record

    path = folder / _SETTINGS
    if not path.exists():
        raise ValueError(f"resume={folder} is no folder of otdd flow: it holds no {_SETTINGS}")
    given = [override.split("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]
    refused = [name for name in given if name.split(".")[0] not in _FREE_ON_RESUME]
    if refused:
        raise ValueError(f"resume continues with the settings of the first run: leave out {', '.join(refused)}")
    try:
        stored = OmegaConf.merge(OmegaConf.structured(FlowConfig), read_record(path))
    except (ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} holds no settings of otdd flow: {' '.join(str(error).split())}") from error
    earlier = OmegaConf.to_object(stored)
    assert isinstance(earlier, FlowConfig)
    steps = config.steps if "steps" in given else earlier.steps
    return replace(earlier, steps=steps, output=config.output, progress=config.progress)


def _load(config: FlowConfig) -> tuple[LabeledDataset, LabeledDataset, LabeledDataset | None]:
    """Source, target and the set that the transfer check tests on, in one feature space and on one device."""
    device, progress = _device(config), _progress(config)
    sides = [config.source, config.target]
    tested = config.transfer_split is not None and bool(config.transfer_neighbours)
    if tested:
        sides.append(replace(config.target, split=config.transfer_split))
    source, target, *rest = (load_side(side, config.seed, config.features) for side in sides)
    features = make_features(config.features, device, progress, seen=[source, target, *rest])
    moved = [side.to(device) for side in features.apply(source, target)[:2]]
    if not tested:
        return moved[0], moved[1], None
    if config.features.fit_on != "source":
        raise ValueError("transfer_split needs features.fit_on=source: the test set must not be fitted on")
    return moved[0], moved[1], features.apply(source, rest[0])[1].to(device)


def _flow(config: FlowConfig, source: LabeledDataset, target: LabeledDataset) -> Flow:
    from otdd_flash.flows import DatasetTransport, Flow

    given: dict[str, Any] = {
        **asdict(config.solver), **label_arguments(config.labels), "feature_weight": config.features.weight,
        "seed": config.seed,
    }  # fmt: skip
    options = DistanceOptions(**given)
    return Flow(
        DatasetTransport(target, options), dynamics=_dynamics(config, target), stepper=_stepper(config.stepper),
        projection=_projection(config, source), seed=config.seed,
    )  # fmt: skip


def _dynamics(config: FlowConfig, target: LabeledDataset) -> Dynamics:
    from otdd_flash.flows import AugmentedFlow, Clustering, FeatureFlow, JointFlow, TiedFlow

    given = config.dynamics
    if given.name == "features":
        return FeatureFlow(given.moments)  # type: ignore[arg-type]
    if given.name == "tied":
        return TiedFlow()
    if given.name == "joint":
        return JointFlow(target, rate=given.rate)
    if given.name == "augmented":
        if given.clustering is None:
            return AugmentedFlow(None)
        settings = {name: getattr(given, name) for name in ("every", "clusters", "radius", "min_samples")}
        return AugmentedFlow(Clustering(given.clustering, **settings, seed=config.seed))  # type: ignore[arg-type]
    raise ValueError(f"dynamics.name must be features, tied, augmented or joint, got {given.name!r}")


def _stepper(given: StepperConfig) -> Stepper:
    from otdd_flash.flows import Euler, LineSearch, Momentum, Noisy, TorchOptimizer

    steppers: dict[str, Any] = {
        "line_search": lambda: LineSearch(given.rate, grow=given.grow),
        "euler": lambda: Euler(given.rate),
        "momentum": lambda: Momentum(given.rate, given.decay),
        "torch": lambda: TorchOptimizer(given.optimizer, {"lr": given.rate, **given.settings}),
    }
    if given.name not in steppers:
        raise ValueError(f"stepper.name must be {', '.join(steppers)}, got {given.name!r}")
    stepper = steppers[given.name]()
    return Noisy(stepper, given.temperature) if given.temperature else stepper


def _projection(config: FlowConfig, source: LabeledDataset) -> Projection | None:
    from otdd_flash.flows import Box, Grid

    choices: dict[str, Any] = {"none": None, "box": Box(), "grid": Grid()}
    # an embedder's features are no pictures even where its input was
    choices["auto"] = Box() if source.image_shape is not None and source.levels is not None else None
    if config.projection not in choices:
        raise ValueError(f"projection must be {', '.join(choices)}, got {config.projection!r}")
    return choices[config.projection]


def _callbacks(config: FlowConfig, folder: Path, source: LabeledDataset, target: LabeledDataset) -> list[Callback]:
    from otdd_flash.flows import EarlyStopping, Metrics, Progress, SaveCheckpoint, TensorBoard, Trajectory

    callbacks: list[Callback] = [Metrics(folder / _METRICS)]
    if _progress(config):
        callbacks.append(Progress())
    if config.tensorboard:
        callbacks.append(TensorBoard(folder / "tensorboard"))
    if config.trajectory_every:
        callbacks.append(Trajectory(folder / "trajectory", config.trajectory_every))
    if config.patience:
        callbacks.append(EarlyStopping(config.patience, config.patience_relative))
    # after the metrics, so that a run killed between the two has no line missing
    callbacks.append(SaveCheckpoint(folder / _CHECKPOINT, config.checkpoint_every))
    return [*callbacks, *_pictures(config, folder / "pictures", source, target)]


def _pictures(config: FlowConfig, folder: Path, source: LabeledDataset, target: LabeledDataset) -> list[Callback]:
    """Image grids for pictures, points in the plane for all else, and their animation."""
    from otdd_flash.flows import Animation, ImageGrid, Scatter
    from otdd_flash.flows.pictures import Tolerated

    if config.pictures.animation not in ("gif", "mp4", "none"):
        raise ValueError(f"pictures.animation must be gif, mp4 or none, got {config.pictures.animation!r}")
    if not config.pictures.every or not config.output.files:
        return []
    drawing: Callback = Scatter(target, folder, config.pictures.every)
    pattern = "scatter_*.png"
    if source.image_shape is not None and source.levels is not None:
        drawing, pattern = ImageGrid(folder, config.pictures.every, config.pictures.columns), "images_*.png"
    if config.pictures.animation == "none":
        return [Tolerated(drawing)]
    return [Tolerated(drawing), Tolerated(Animation(folder / f"flow.{config.pictures.animation}", folder, pattern))]


def _transfer_check(
    config: FlowConfig, flow: Flow, source: LabeledDataset, target: LabeledDataset, test: LabeledDataset | None
) -> TransferCheck | None:
    from otdd_flash.flows import DatasetTransport, TransferCheck

    if not config.transfer_neighbours:
        return None
    assert isinstance(flow.objective, DatasetTransport)
    return TransferCheck(source, target, test, config.transfer_neighbours, flow.objective.options)


def _record(
    config: FlowConfig, result: FlowResult, check: TransferCheck | None, seconds: float, folder: Path
) -> dict[str, Any]:
    """What was done and found, in JSON's own types."""
    with (folder / _METRICS).open(newline="", encoding="utf-8") as file:
        values = [float(line["value"]) for line in csv.DictReader(file)]
    return {
        "task": "flow", "value": result.value, "start_value": values[0],
        "fall": 1 - result.value / values[0] if values[0] > 0 else 0.0,
        "monotone": all(new <= old for old, new in itertools.pairwise(values)),
        "steps": result.steps, "reason": result.reason, "classes": list(map(str, result.data.class_names)),
        "transfer": check.history[-1][1].to_dict() if check else None, "seconds": seconds, "folder": str(folder),
        "config": asdict(config),
    }  # fmt: skip


def _rows(record: dict[str, Any]) -> list[Row]:
    rows = [
        ("value", f"{record['value']:.6g}  (squared distance; {record['start_value']:.6g} at the start)"),
        ("fall", f"{record['fall']:.2%}{', with every step' if record['monotone'] else ''}"),
        ("steps", f"{record['steps']}  (ended by: {record['reason']})"),
        ("classes", str(len(record["classes"]))),
    ]
    if record["transfer"]:
        found = record["transfer"]
        text = f"{found['flowed']:.1%} trained on the flowed set, {found['source']:.1%} on the source"
        rows.append(("transfer", f"{text}  ({found['k']}-NN, {found['tested']} samples of the target)"))
    return [*rows, ("time", format_seconds(record["seconds"]))]


def _save(data: LabeledDataset, path: Path) -> None:
    from otdd_flash.tensor_files import write_safetensors

    tensors = {"x": data.x, "y": data.y, "weights": data.normalised_weights.clone()}
    names = json.dumps(list(map(str, data.class_names)))
    write_safetensors(tensors, path, {"class_names": names}, needed_for="saving the flowed set")


def _device(config: FlowConfig) -> str:
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def _progress(config: FlowConfig) -> bool:
    return sys.stderr.isatty() if config.progress is None else config.progress
