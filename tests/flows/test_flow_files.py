"""What a flow leaves behind: metrics, checkpoints, trajectories, pictures; and that it can be taken up again."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.distance import DistanceOptions
from otdd_flash.flows import (
    Animation,
    AugmentedFlow,
    Callback,
    Checkpoint,
    DatasetTransport,
    Dynamics,
    EarlyStopping,
    Euler,
    FeatureFlow,
    Flow,
    FlowState,
    ImageGrid,
    InternalEnergy,
    JointFlow,
    LineSearch,
    Metrics,
    Momentum,
    Noisy,
    PotentialEnergy,
    Progress,
    SaveCheckpoint,
    Scatter,
    Stepper,
    StepRefusedError,
    TensorBoard,
    TiedFlow,
    TorchOptimizer,
    Trajectory,
    TransferCheck,
    gradient_flow,
    transfer_check,
)
from otdd_flash.flows.pictures import Tolerated, image_grid
from otdd_flash.flows.transfer import class_map, knn_predict
from otdd_flash.types import LabeledDataset

pytest.importorskip("safetensors")
OPTIONS = DistanceOptions(label_distance="gaussian_diag", epsilon=0.2)
QUADRATIC = PotentialEnergy(lambda x: x.square().sum(1))


def blobs(seed: int, shift: float, *, n: int = 8, dtype: torch.dtype = torch.float32) -> LabeledDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(2).repeat_interleave(n)
    centres = torch.tensor([[shift, 0.0, 0.0], [shift, 3.0, 0.0]])
    x = centres[y] + 0.3 * torch.randn(2 * n, 3, generator=generator)
    return replace(otdd.from_arrays(x.to(dtype), [f"class {i}" for i in y.tolist()]), name=f"blobs {seed}")


SOURCE, TARGET = blobs(1, 0.0), blobs(2, 4.0)


class KilledError(Exception):
    """The process ends here."""


class _Frames(Callback):
    """A frame of one color a step, of the size given for it."""

    def __init__(self, folder: Path, sizes: list[tuple[int, int]]) -> None:
        self.folder, self.sizes = folder, sizes

    def __call__(self, flow: Flow, state: FlowState) -> None:
        from PIL import Image

        color = (40 * state.step, 0, 0)
        Image.new("RGB", self.sizes[state.step - 1], color).save(self.folder / f"images_{state.step}.png")


class _Broken(Callback):
    drawn = 0

    def __call__(self, flow: Flow, state: FlowState) -> None:
        self.drawn += 1
        raise RuntimeError("no such font")


class _Count(Callback):
    taken = 0

    def __call__(self, flow: Flow, state: FlowState) -> None:
        self.taken += 1


class KillAt(Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def __call__(self, flow: Flow, state: FlowState) -> None:
        if state.step == self.at:
            raise KilledError


COMBINATIONS: list[tuple[Stepper, Dynamics]] = [
    (Euler(0.05), FeatureFlow("attached")),
    (LineSearch(0.1), FeatureFlow("detached")),
    (Momentum(0.02), TiedFlow()),
    (Noisy(Euler(0.05), 0.01), AugmentedFlow()),
    (TorchOptimizer("Adam", {"lr": 0.05}), JointFlow(TARGET)),
    (TorchOptimizer("LBFGS", {"lr": 0.1, "max_iter": 2}), FeatureFlow("attached")),
    (Noisy(TorchOptimizer("SGD", {"lr": 0.02, "momentum": 0.9}), 0.01), FeatureFlow("attached")),
]


@pytest.mark.parametrize(("stepper", "dynamics"), COMBINATIONS)
def test_a_killed_and_resumed_flow_ends_bitwise_the_same(stepper: Stepper, dynamics: Dynamics, tmp_path: Path) -> None:
    def flow() -> Flow:
        return Flow(DatasetTransport(TARGET, OPTIONS), dynamics, stepper, seed=3)

    whole = flow().run(SOURCE, steps=12)
    path = tmp_path / "checkpoint.safetensors"
    with pytest.raises(KilledError):
        flow().run(SOURCE, steps=12, callbacks=[SaveCheckpoint(path, every=5), _NoFinish(path), KillAt(7)])
    resumed = flow().run(SOURCE, steps=12, resume=Checkpoint.load(path))
    assert resumed.history[0]["step"] == 5
    assert resumed.value == whole.value
    assert torch.equal(resumed.data.x, whole.data.x)
    assert torch.equal(resumed.data.y, whole.data.y)
    assert resumed.data.class_names == whole.data.class_names
    for name, value in whole.state.variables.items():
        assert torch.equal(resumed.state.variables[name], value), name
    assert resumed.history[1:] == whole.history[6:]


class _NoFinish(Callback):
    """Undo what a clean end would write: a kill writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.kept = path, b""

    def __call__(self, flow: Flow, state: FlowState) -> None:
        self.kept = self.path.read_bytes()

    def finish(self, flow: Flow, state: FlowState) -> None:
        self.path.write_bytes(self.kept)


def test_a_checkpoint_of_other_data_or_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    gradient_flow(SOURCE, TARGET, steps=1, options=OPTIONS, callbacks=[SaveCheckpoint(path)])
    with pytest.raises(ValueError, match="of a flow from other data"):
        gradient_flow(TARGET, TARGET, steps=2, options=OPTIONS, resume=Checkpoint.load(path))
    (tmp_path / "broken").write_bytes(b"not a file of that kind")
    with pytest.raises(ValueError, match=r"not a readable file of .otdd-flash flow checkpoint"):
        Checkpoint.load(tmp_path / "broken")
    with pytest.raises(FileNotFoundError):
        Checkpoint.load(tmp_path / "absent")


def test_the_state_before_a_refused_step_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    flow = Flow(QUADRATIC, stepper=Euler(1e15))
    with pytest.raises(StepRefusedError, match="step 2 was refused"):
        flow.run(SOURCE, steps=5, callbacks=[SaveCheckpoint(path, every=100)])
    assert Checkpoint.load(path).tree["step"] == 1


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_hold_every_step_once_also_after_a_resume(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "metrics.csv", tmp_path / "checkpoint.safetensors"
    objective = DatasetTransport(TARGET, OPTIONS)
    first = Flow(objective).run(SOURCE, steps=3, callbacks=[SaveCheckpoint(checkpoint)])
    Flow(objective).run(SOURCE, steps=5, callbacks=[Metrics(path)])
    again = Flow(objective).run(SOURCE, steps=6, callbacks=[Metrics(path)], resume=Checkpoint.load(checkpoint))
    found = lines(path)
    assert [int(line["step"]) for line in found] == list(range(7))
    values = [float(line["value"]) for line in found]
    assert values == [h["value"] for h in first.history] + [h["value"] for h in again.history[1:]]
    assert {"rate", "speed", "event", "classes", "seconds", "converged", "iterations"} <= set(found[0])


def test_a_line_of_metrics_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "metrics.csv", tmp_path / "checkpoint.safetensors"
    flow = Flow(QUADRATIC, stepper=Euler(0.1))
    flow.run(SOURCE, steps=11, callbacks=[Metrics(path), SaveCheckpoint(checkpoint)])
    whole = path.read_bytes()
    last = whole.rstrip().rfind(b"\n") + 1
    flow.run(SOURCE, steps=12, callbacks=[Metrics(tmp_path / "all.csv")])
    steps = [line["step"] for line in lines(tmp_path / "all.csv")]
    # within the step "11" and behind it, within the value, before the line's end, and within the header
    for end in (last + 1, last + 3, last + 8, len(whole) - 2, len(whole) - 1, 3):
        path.write_bytes(whole[:end])
        flow.run(SOURCE, steps=12, callbacks=[Metrics(path)], resume=Checkpoint.load(checkpoint))
        found = lines(path)
        assert [line["step"] for line in found] == (steps if end > 3 else steps[11:])
        assert all(float(line["value"]) >= 0 for line in found)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_shows_every_step_once_also_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board, checkpoint = tmp_path / "board", tmp_path / "checkpoint.safetensors"
    flow = Flow(DatasetTransport(TARGET, OPTIONS))
    first = flow.run(SOURCE, steps=3, callbacks=[TensorBoard(board), SaveCheckpoint(checkpoint)])
    flow.run(SOURCE, steps=4, callbacks=[TensorBoard(board)], resume=Checkpoint.load(checkpoint))
    again = flow.run(SOURCE, steps=5, callbacks=[TensorBoard(board)], resume=Checkpoint.load(checkpoint))
    found = scalars(board)
    assert {"flow/value", "flow/rate", "flow/speed", "flow/classes", "flow/iterations"} <= set(found)
    assert [step for step, _ in found["flow/value"]] == list(range(6))
    values = [h["value"] for h in (*first.history, *again.history[1:])]
    assert [value for _, value in found["flow/value"]] == pytest.approx(values, rel=1e-6)  # kept in float32
    assert [step for step, _ in found["flow/rate"]] == [1, 2, 3, 4, 5]  # the start has none


def test_tensorboard_and_video_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, not at the end."""
    for module in ("tensorboard", "imageio_ffmpeg"):
        monkeypatch.setitem(sys.modules, module, None)
    for callback in (TensorBoard(tmp_path), Animation(tmp_path / "flow.mp4", tmp_path)):
        with pytest.raises(ImportError, match=r"needs \w+, which is not installed: pip install 'otdd-flash\[flows\]'"):
            gradient_flow(SOURCE, InternalEnergy(_never), steps=1, callbacks=[callback])


def _never(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """An energy that may be evaluated at the start alone."""
    assert torch.equal(x.detach(), SOURCE.x)
    return x.sum()


def test_trajectory_holds_the_variables(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = gradient_flow(SOURCE, TARGET, steps=4, dynamics=TiedFlow(), options=OPTIONS,
                          callbacks=[Trajectory(tmp_path, every=2)])  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_0000{k}.safetensors" for k in (0, 2, 4)]
    first, last = (load_file(tmp_path / f"step_0000{k}.safetensors") for k in (0, 4))
    assert torch.equal(first["x"], SOURCE.x)
    assert set(last) == {"x", "statistics", "y"}
    assert torch.equal(last["x"], found.data.x)


def test_early_stopping_waits_for_its_patience_or_goal() -> None:
    flat = PotentialEnergy(lambda x: 0 * x[:, 0] + 1)
    found = gradient_flow(SOURCE, flat, steps=50, stepper=Euler(), callbacks=[EarlyStopping(patience=4)])
    assert (found.steps, found.reason) == (4, "EarlyStopping")
    found = gradient_flow(SOURCE, QUADRATIC, steps=50, stepper=Euler(0.1), callbacks=[EarlyStopping(goal=0.1)])
    assert found.value <= 0.1 < found.history[-2]["value"]


def test_progress_shows_value_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    gradient_flow(SOURCE, QUADRATIC, steps=2, stepper=Euler(0.25), callbacks=[Progress()])
    assert "rate 0.25" in capsys.readouterr().err


def pictures(**kwargs: Any) -> LabeledDataset:
    x = torch.linspace(0, 1, 6)[:, None].expand(6, 4).clone()
    return otdd.from_arrays(x, ["a", "a", "a", "b", "b", "b"], **kwargs)


def test_image_grid_shows_the_pixels_by_class(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    data = replace(pictures(), image_shape=(2, 2))
    grid = ImageGrid(tmp_path, every=2, columns=2, scale=1)
    animation = Animation(tmp_path / "flow.gif", tmp_path)
    gradient_flow(data, QUADRATIC, steps=3, stepper=Euler(0.25), callbacks=[grid, animation])
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    assert names == ["images_00000.png", "images_00002.png", "images_00003.png"]
    first, last = (image.open(tmp_path / names[i]) for i in (0, -1))
    assert first.size == (8, 8)
    # two classes of two samples: values 0, 0.2 and 0.6, 0.8; halved by each step
    corners = [(0, 0), (4, 0), (0, 4), (4, 4)]
    assert [first.getpixel(at)[0] for at in corners] == [0, 51, 153, 204]
    assert [last.getpixel(at)[0] for at in corners] == pytest.approx([0, 6.4, 19.1, 25.5], abs=0.6)
    assert image.open(tmp_path / "flow.gif").n_frames == 3


def test_a_video_decodes_to_its_frames(tmp_path: Path) -> None:
    """The frames of the grid, 9 x 9 pixels (padded to even sides), and the last one held for eight."""
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    data = replace(pictures(), image_shape=(2, 2))
    grid = ImageGrid(tmp_path, every=1, columns=3, scale=9)
    film = Animation(tmp_path / "film" / "flow.mp4", tmp_path, milliseconds=100)
    gradient_flow(data, QUADRATIC, steps=3, stepper=Euler(0.25), callbacks=[grid, film])
    with imageio.get_reader(film.path) as reader:
        frames = list(reader.iter_data())
        assert reader.get_meta_data()["fps"] == 10
    assert len(frames) == 4 + 7
    drawn = [imageio.imread(path)[..., :3] for path in sorted(tmp_path.glob("images_*.png"))]
    height, width = drawn[0].shape[:2]
    assert (height, width) == (72, 108)
    for frame, picture in zip(frames, [*drawn, *[drawn[-1]] * 7], strict=True):
        # the middle of the second picture of the second class, which halves with every step
        assert abs(int(frame[49, 49, 0]) - int(picture[49, 49, 0])) <= 6
    assert int(frames[0][49, 49, 0]) > int(frames[1][49, 49, 0]) + 50


def test_a_video_of_odd_sides(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("PIL.Image")
    film = Animation(tmp_path / "flow.mp4", tmp_path)
    gradient_flow(SOURCE, QUADRATIC, steps=3, callbacks=[_Frames(tmp_path, [(33, 21)] * 3), film])
    with imageio.get_reader(tmp_path / "flow.mp4") as reader:
        frames = list(reader.iter_data())
    assert len(frames) == 3 + 7
    assert {frame.shape for frame in frames} == {(22, 34, 3)}


def test_an_animation_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path of an animation must end in \.gif or \.mp4, got .*flow\.webm"):
        Animation(tmp_path / "flow.webm", tmp_path)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ImageGrid, "every"), (ImageGrid, "columns"), (ImageGrid, "scale"), (Trajectory, "every"),
        (SaveCheckpoint, "every"), (lambda place, **given: Scatter(TARGET, place, **given), "every"),
        (lambda place, **given: Animation("a.gif", place, **given), "milliseconds"),
    ],
)  # fmt: skip
def test_numbers_of_callbacks_are_checked_when_they_are_given(make: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .*got 0"):
        make(tmp_path, **{name: 0})


def test_a_place_that_cannot_hold_an_animation_is_found_before_the_first_step(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("x")
    steps = _Count()
    for place in ("folder.gif", "file/a.gif"):
        with pytest.raises(OSError, match=place.partition("/")[0]):
            gradient_flow(SOURCE, QUADRATIC, steps=2, callbacks=[Animation(tmp_path / place, tmp_path), steps])
    assert steps.taken == 0


def test_an_encoder_that_leaves_no_film_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ffmpeg complains on stderr and imageio does not listen; an older film stays."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("imageio_ffmpeg")
    image.new("RGB", (4, 4)).save(tmp_path / "images_0.png")
    (tmp_path / "a.mp4").write_text("old")
    monkeypatch.setattr("otdd_flash.flows.pictures._LAST", 1)
    film = Animation(tmp_path / "a.mp4", tmp_path)
    film.milliseconds = -5  # a rate that ffmpeg does not take
    with pytest.raises(OSError, match=r"the encoder wrote no .*a\.mp4"):
        gradient_flow(SOURCE, QUADRATIC, steps=1, callbacks=[film])
    assert (tmp_path / "a.mp4").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "images_0.png"]


def test_frames_of_several_sizes_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    frames, film = _Frames(tmp_path, [(4, 4), (5, 4)]), Animation(tmp_path / "a.gif", tmp_path)
    with pytest.raises(ValueError, match=r"have the sizes \[\(4, 4\), \(5, 4\)\]: give each flow its folder"):
        gradient_flow(SOURCE, QUADRATIC, steps=2, callbacks=[frames, film])


def test_frames_of_an_earlier_flow_do_not_join_the_film(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    film = Animation(tmp_path / "a.gif", tmp_path)
    for steps in (5, 3):  # the frames of steps 4 and 5 stay in the folder
        gradient_flow(SOURCE, QUADRATIC, steps=steps, callbacks=[_Frames(tmp_path, [(4, 4)] * steps), film])
        assert image.open(film.path).n_frames == steps
    assert len(list(tmp_path.glob("images_*.png"))) == 5


def test_the_film_of_a_resumed_flow_has_the_frames_before_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path, film = tmp_path / "checkpoint.safetensors", Animation(tmp_path / "a.gif", tmp_path)
    frames = _Frames(tmp_path, [(4, 4)] * 6)
    flow = Flow(QUADRATIC, stepper=Euler(0.25))
    with pytest.raises(KilledError):
        flow.run(SOURCE, steps=6, callbacks=[SaveCheckpoint(path, every=2), _NoFinish(path), frames, KillAt(5)])
    assert len(list(tmp_path.glob("images_*.png"))) == 5
    flow.run(SOURCE, steps=6, callbacks=[frames, film], resume=Checkpoint.load(path))
    assert image.open(film.path).n_frames == 6


def test_a_drawing_that_fails_is_given_up_and_the_flow_goes_on(tmp_path: Path) -> None:
    drawing = _Broken()
    with pytest.warns(UserWarning, match="_Broken is given up, the flow goes on: no such font") as seen:
        result = gradient_flow(SOURCE, QUADRATIC, steps=3, callbacks=[Tolerated(drawing)])
    assert len(seen) == 1
    assert (result.steps, drawing.drawn) == (3, 1)


@pytest.mark.parametrize("channels", [2, 4])
def test_pictures_with_other_channels_than_colours_show_their_mean(channels: int) -> None:
    pytest.importorskip("PIL.Image")
    x = torch.arange(channels, dtype=torch.float32).repeat_interleave(4)[None] / 10
    shown = image_grid(x, [[0]], (channels, 2, 2), scale=1).getpixel((0, 0))
    assert shown == (round(255 * (channels - 1) / 20),) * 3


def test_a_resumed_flow_draws_the_frames_of_an_uninterrupted_one(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    data, path = replace(pictures(), image_shape=(2, 2)), tmp_path / "checkpoint.safetensors"
    flow = Flow(QUADRATIC, stepper=Euler(0.25))
    with pytest.raises(KilledError):
        flow.run(data, steps=6, callbacks=[SaveCheckpoint(path), _NoFinish(path), KillAt(4)])
    flow.run(data, steps=6, callbacks=[ImageGrid(tmp_path / "frames", every=3)], resume=Checkpoint.load(path))
    assert [frame.name for frame in (tmp_path / "frames").iterdir()] == ["images_00006.png"]


def test_image_grid_wants_pictures(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no pictures"):
        gradient_flow(SOURCE, QUADRATIC, steps=1, callbacks=[ImageGrid(tmp_path)])


def test_scatter_frames_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    gradient_flow(SOURCE, TARGET, steps=2, options=OPTIONS, callbacks=[Scatter(TARGET, tmp_path, every=1)])
    frames = [image.open(path) for path in sorted(tmp_path.glob("scatter_*.png"))]
    assert [frame.size for frame in frames] == [(600, 600)] * 3
    assert len({frame.tobytes() for frame in frames}) == 3


def test_animation_without_frames_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    with pytest.raises(ValueError, match="no frames"):
        gradient_flow(SOURCE, QUADRATIC, steps=1, callbacks=[Animation(tmp_path / "flow.gif", tmp_path)])


def test_nearest_neighbours_vote() -> None:
    x = torch.tensor([[0.0], [0.1], [1.0], [1.1], [1.2]])
    y = torch.tensor([1, 1, 0, 0, 2])
    assert knn_predict(x, y, torch.tensor([[0.0], [1.05]]), k=3).tolist() == [1, 0]
    assert knn_predict(x, y, torch.tensor([[1.2]]), k=1).tolist() == [2]


def test_classes_stand_for_where_their_mass_goes() -> None:
    names, share = class_map(torch.tensor([[0.1, 0.4], [0.3, 0.2]]))
    assert (names.tolist(), share) == ([1, 0], pytest.approx(0.7))


def test_a_flowed_set_teaches_about_the_target() -> None:
    """The source says nothing of the target: its classes differ along another axis."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.2 * torch.randn(3, 40, 2, generator=generator)
    y = torch.arange(2).repeat_interleave(20)
    vertical, horizontal = torch.tensor([[0.0, -2.0], [0.0, 2.0]]), torch.tensor([[-2.0, 9.0], [2.0, 9.0]])
    source = otdd.from_arrays(vertical[y] + noise[0], y)
    names = ["west" if i == 0 else "east" for i in y.tolist()]
    target, test = (otdd.from_arrays(horizontal[y] + noise[k], names) for k in (1, 2))
    check = TransferCheck(source, target, test, k=3, options=OPTIONS)
    found = gradient_flow(source, target, steps=25, stepper=LineSearch(0.2), options=OPTIONS, callbacks=[check])
    (step, score), *_ = check.history
    assert step == found.steps
    assert (score.flowed, score.tested) == (1.0, 40)
    assert score.source <= 0.6
    assert sorted(score.label_map.values()) == ["east", "west"]
    assert score == transfer_check(source, found.data, target, test=test, k=3, options=OPTIONS)
    other = replace(test, class_names=("north", "east"))
    with pytest.raises(ValueError, match="classes that the target lacks: north"):
        transfer_check(source, found.data, target, test=other, options=OPTIONS)
