from __future__ import annotations

import csv
import json
import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from otdd_flash.distance import DistanceOptions

Command = Callable[..., SimpleNamespace]
IRIS = ("source=iris", "target=iris", "source.classes=[0]", "target.classes=[2]", "device=cpu", "pictures.every=0")
pytest.importorskip("safetensors")


def folder_of(tmp_path: Path) -> Path:
    (folder,) = tmp_path.glob("outputs/flow/*/*")
    return folder


def flowed(folder: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    return load_file(folder / "flowed.safetensors")["x"]


def test_json_is_the_librarys_flow(otdd: Command, tmp_path: Path) -> None:
    import otdd_flash

    outcome = otdd("flow", *IRIS, "steps=4", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    source, target = (otdd_flash.load("iris", classes=[c]) for c in (0, 2))
    from otdd_flash.flows import LineSearch

    expected = otdd_flash.gradient_flow(
        source, target, steps=4, stepper=LineSearch(0.1, grow=1.0),
        options=DistanceOptions(label_distance="gaussian_diag"),
    )  # fmt: skip
    assert record["value"] == expected.value
    assert record["start_value"] == expected.history[0]["value"]
    assert record["fall"] == pytest.approx(1 - record["value"] / record["start_value"])
    assert record["monotone"] is True
    assert (record["steps"], record["reason"]) == (4, "steps")
    assert torch.equal(flowed(folder_of(tmp_path)), expected.data.x)
    with (folder_of(tmp_path) / "metrics.csv").open(newline="") as file:
        assert [float(line["value"]) for line in csv.DictReader(file)] == [h["value"] for h in expected.history]


def test_resume_continues_with_the_settings_of_the_first_run(otdd: Command, tmp_path: Path) -> None:
    noise = ("stepper=euler", "stepper.temperature=0.01", "stepper.rate=0.05")
    whole = otdd("flow", *IRIS, *noise, "steps=6", "output=json", "hydra.run.dir=whole")
    first = otdd("flow", *IRIS, *noise, "steps=3", "output=json", "hydra.run.dir=part")
    assert (whole.code, first.code) == (0, 0), first.err
    rest = otdd("flow", "resume=part", "steps=6", "output=json", "hydra.run.dir=rest")
    assert rest.code == 0, rest.err
    records = [json.loads(outcome.out) for outcome in (whole, rest)]
    for key in ("value", "start_value", "steps"):
        assert records[0][key] == records[1][key]
    assert torch.equal(flowed(tmp_path / "whole"), flowed(tmp_path / "part"))
    metrics = [(tmp_path / name / "metrics.csv").read_text().splitlines() for name in ("whole", "part")]
    values = [[line.split(",")[:5] for line in lines] for lines in metrics]
    assert values[0] == values[1]


def test_resume_refuses_other_settings_and_other_folders(otdd: Command, tmp_path: Path) -> None:
    assert otdd("flow", *IRIS, "steps=1", "hydra.run.dir=part").code == 0
    changed = otdd("flow", "resume=part", "stepper.rate=0.3", "seed=4")
    assert changed.code == 1
    assert "leave out stepper.rate, seed" in changed.err
    absent = otdd("flow", "resume=nowhere")
    assert absent.code == 1
    assert "no folder of otdd flow" in absent.err


def test_a_folder_takes_one_flow(otdd: Command, tmp_path: Path) -> None:
    """A second flow would mix its metrics and checkpoints with those of the first."""
    fcntl = pytest.importorskip("fcntl")
    assert otdd("flow", *IRIS, "steps=1", "hydra.run.dir=part").code == 0
    before = (tmp_path / "part" / "metrics.csv").read_text()
    second = otdd("flow", *IRIS, "steps=2", "hydra.run.dir=part")
    assert second.code == 1
    (line,) = second.errors
    assert "part holds another flow already" in line
    assert "resume=" in line
    assert (tmp_path / "part" / "metrics.csv").read_text() == before
    handle = os.open(tmp_path / "part", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        meanwhile = otdd("flow", "resume=part", "steps=2")
    finally:
        os.close(handle)
    assert meanwhile.code == 1
    assert "another flow is running in part" in meanwhile.err
    assert otdd("flow", "resume=part", "steps=2").code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_flow_names_resume(
    otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    from otdd_flash.flows import SaveCheckpoint

    save = SaveCheckpoint.__call__

    def saved_then_stopped(self: SaveCheckpoint, flow: object, state: SimpleNamespace) -> None:
        save(self, flow, state)
        if state.step == 2:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(SaveCheckpoint, "__call__", saved_then_stopped)
        stopped = otdd("flow", *IRIS, "steps=4", "checkpoint_every=1", "hydra.run.dir='a part'")
    assert stopped.code == code
    (line,) = [line for line in stopped.err.splitlines() if "resume=" in line]
    typed = line.partition(": otdd flow ")[2].removesuffix(" goes on from the last checkpoint")
    assert "Traceback" not in stopped.err
    rest = otdd("flow", *shlex.split(typed), "output=json")
    assert rest.code == 0, rest.err
    assert json.loads(rest.out)["steps"] == 4
    assert otdd("flow", *IRIS, "steps=4", "output=json", "hydra.run.dir=whole").code == 0
    assert torch.equal(flowed(tmp_path / "whole"), flowed(tmp_path / "a part"))


def test_a_flow_that_keeps_no_files_has_nothing_to_resume(
    otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert otdd("flow", *IRIS, "steps=1", "output.files=false").code == 0
    monkeypatch.setattr("otdd_flash.flows.Flow.run", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    stopped = otdd("flow", *IRIS, "steps=1", "output.files=false")
    assert (stopped.code, stopped.errors) == (130, ["otdd flow: error: interrupted"])
    assert list(tmp_path.iterdir()) == []


def test_settings_changed_by_hand_are_refused_by_their_key(otdd: Command, tmp_path: Path) -> None:
    from otdd_flash.tensor_files import read_record, write_record

    assert otdd("flow", *IRIS, "steps=1", "hydra.run.dir=part").code == 0
    path = tmp_path / "part" / "settings.json"
    settings = read_record(path)
    for changed, word in ({**settings, "stepper": {"rate": "fast"}}, "fast"), ({**settings, "speed": 1}, "speed"):
        write_record(changed, path)
        outcome = otdd("flow", "resume=part", "steps=2")
        assert outcome.code == 1
        (line,) = outcome.errors
        assert "settings.json holds no settings of otdd flow" in line
        assert word in line


def test_pictures_that_cannot_be_drawn_do_not_end_the_flow(
    otdd: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from otdd_flash.flows import Scatter

    draw = Scatter._draw

    def fails_later(self: Scatter, flow: object, state: SimpleNamespace) -> None:
        if state.step:
            raise RuntimeError("no such font")
        draw(self, flow, state)

    monkeypatch.setattr(Scatter, "_draw", fails_later)
    outcome = otdd("flow", *IRIS[:-1], "steps=2", "pictures.every=1")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("no such font") == 1
    assert (folder_of(tmp_path) / "flowed.safetensors").is_file()


def test_damaged_settings_of_a_flow_are_refused(otdd: Command, tmp_path: Path) -> None:
    assert otdd("flow", *IRIS, "steps=1", "hydra.run.dir=part").code == 0
    path = tmp_path / "part" / "settings.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 4', 1))
    outcome = otdd("flow", "resume=part", "steps=2")
    assert outcome.code == 1
    (line,) = outcome.errors
    assert "settings.json is damaged" in line


@pytest.mark.parametrize("dynamics", ["features", "detached", "tied", "augmented", "joint"])
def test_every_dynamics_of_the_group_runs(otdd: Command, dynamics: str) -> None:
    outcome = otdd("flow", *IRIS, f"dynamics={dynamics}", "steps=3", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["fall"] > 0.5
    assert record["config"]["dynamics"]["name"] == ("features" if dynamics == "detached" else dynamics)


@pytest.mark.parametrize(("stepper", "fall"), [("line_search", 0.5), ("euler", 0.5), ("momentum", 0.1), ("adam", 0.01)])
def test_every_stepper_of_the_group_runs(otdd: Command, stepper: str, fall: float) -> None:
    outcome = otdd("flow", *IRIS, f"stepper={stepper}", "steps=3", "output=json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["fall"] > fall


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("dynamics.name=still", "dynamics.name must be features"),
        ("stepper.name=leap", "stepper.name must be line_search"),
        ("projection=ball", "projection must be none, box, grid, auto"),
        ("pictures.animation=webm", "pictures.animation must be gif, mp4 or none"),
    ],
)
def test_wrong_choices_are_named(otdd: Command, override: str, words: str) -> None:
    outcome = otdd("flow", *IRIS, override)
    assert outcome.code == 1
    (line,) = outcome.errors
    assert words in line


def test_a_refused_step_leaves_a_checkpoint_and_one_line(otdd: Command, tmp_path: Path) -> None:
    outcome = otdd("flow", *IRIS, "stepper=euler", "stepper.rate=1e200")
    assert outcome.code == 1
    (line,) = outcome.errors
    assert "step 1 was refused: x of class 'setosa'" in line
    assert (folder_of(tmp_path) / "checkpoint.safetensors").exists()


def test_pictures_of_points_and_table(otdd: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = otdd("flow", *IRIS[:-1], "steps=2", "pictures.every=1", "transfer_neighbours=3")
    assert outcome.code == 0, outcome.err
    names = {path.name for path in (folder_of(tmp_path) / "pictures").iterdir()}
    assert names == {"scatter_00000.png", "scatter_00001.png", "scatter_00002.png", "flow.gif"}
    rows = dict(line.split("  ", 1) for line in outcome.out.splitlines()[2:] if line)
    assert "with every step" in rows["fall"]
    assert "3-NN, 50 samples of the target" in rows["transfer"]


def test_video_and_tensorboard_from_the_command(otdd: Command, tmp_path: Path) -> None:
    for module in ("matplotlib", "imageio_ffmpeg", "tensorboard"):
        pytest.importorskip(module)
    given = ("steps=1", "pictures.every=1", "pictures.animation=mp4", "tensorboard=true", "transfer_neighbours=0")
    outcome = otdd("flow", *IRIS[:-1], *given)
    assert outcome.code == 0, outcome.err
    folder = folder_of(tmp_path)
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert names == {"scatter_00000.png", "scatter_00001.png", "flow.mp4"}
    assert len(list((folder / "tensorboard").glob("events.out.tfevents.*"))) == 1


@pytest.mark.data
@pytest.mark.slow
def test_mnist_becomes_fashion(otdd: Command, data_root: Path, tmp_path: Path) -> None:
    """A small flow of real pictures: the value falls with every step and the flowed set teaches about the target."""
    outcome = otdd(
        "flow", "max_samples=200", f"data_root={data_root}", "device=cpu", "steps=20", "pictures.every=10",
        "transfer_split=test", "output=json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["monotone"]
    assert record["fall"] > 0.85
    assert record["transfer"]["flowed"] > record["transfer"]["source"] + 0.1
    x = flowed(folder_of(tmp_path))
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert (folder_of(tmp_path) / "pictures" / "images_00020.png").exists()
