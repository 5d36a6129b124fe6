"""Tables given by the user are checked; tables on disk come back bit by bit or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from otdd_flash.labels import LabelDistances

SOURCE, TARGET = ("cat", "dog"), ("a", "b", "c")


def joint_table() -> torch.Tensor:
    points = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cdist(points, points).square().fill_diagonal_(0)


def test_joint_and_triple_are_the_same() -> None:
    joint = joint_table()
    whole = LabelDistances.from_tables(joint.numpy(), SOURCE, TARGET)
    parts = LabelDistances.from_tables((joint[:2, :2], joint[:2, 2:], joint[2:, 2:].numpy()), SOURCE, TARGET)
    assert torch.equal(whole.joint(), parts.joint())
    assert torch.equal(whole.joint(), whole.joint().T)
    assert torch.allclose(whole.source_target, joint[:2, 2:], rtol=1e-15)
    assert whole.method == "precomputed"


def test_float32_rounding_is_accepted_and_made_symmetric() -> None:
    joint = joint_table().float()
    joint[0, 1] *= 1 + 2e-7
    result = LabelDistances.from_tables(joint, SOURCE, TARGET).joint()
    assert torch.equal(result, result.T)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ((0, 3), float("nan"), "source 'cat' and target 'b' is nan"),
        ((4, 1), float("inf"), "target 'c' and source 'dog' is inf"),
        ((1, 2), -0.5, "source 'dog' and target 'a' is -0.5"),
        ((0, 2), 99.0, "must be symmetric: source 'cat' to target 'a' is 99"),
        ((3, 3), 1.0, "target 'b' to itself is 1, must be 0"),
    ],
)
def test_wrong_entries_are_named(entry: tuple[int, int], value: float, message: str) -> None:
    joint = joint_table()
    joint[entry] = value
    with pytest.raises(ValueError, match=message):
        LabelDistances.from_tables(joint, SOURCE, TARGET)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"must be \(5, 5\) for 2 source and 3 target classes, got \(4, 4\)"):
        LabelDistances.from_tables(np.zeros((4, 4)), SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"source_target must be \(2, 3\)"):
        LabelDistances.from_tables((np.zeros((2, 2)), np.zeros((3, 2)), np.zeros((3, 3))), SOURCE, TARGET)


def test_file_round_trip(tmp_path) -> None:
    record = {"parameters": {"epsilon": 0.1}, "certificate": {"converged": True}}
    tables = LabelDistances.from_joint(joint_table(), SOURCE, TARGET, "sinkhorn", **record)
    path = tables.to_safetensors(tmp_path / "new" / "tables.safetensors")
    back = LabelDistances.from_safetensors(path)
    assert torch.equal(back.joint(), tables.joint())
    assert (back.source_names, back.target_names, back.method) == (SOURCE, TARGET, "sinkhorn")
    assert json.dumps([back.parameters, back.certificate]) == json.dumps(list(record.values()))
    assert [entry.name for entry in path.parent.iterdir()] == ["tables.safetensors"]


def test_failed_write_leaves_the_old_file(tmp_path) -> None:
    path = LabelDistances.from_joint(joint_table(), SOURCE, TARGET, "means").to_safetensors(tmp_path / "t.safetensors")
    before = path.read_bytes()
    unserialisable = LabelDistances.from_joint(joint_table(), SOURCE, TARGET, "x", parameters={"f": object()})
    with pytest.raises(TypeError):
        unserialisable.to_safetensors(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_foreign_and_damaged_files_are_refused(tmp_path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    foreign, damaged = tmp_path / "foreign.safetensors", tmp_path / "damaged.safetensors"
    safetensors.save_file({"w": torch.zeros(2)}, foreign)
    whole = LabelDistances.from_joint(joint_table(), SOURCE, TARGET, "means").to_safetensors(damaged)
    damaged.write_bytes(whole.read_bytes()[:-40])
    for path in (foreign, damaged):
        with pytest.raises(ValueError, match=path.name):
            LabelDistances.from_safetensors(path)
    with pytest.raises(FileNotFoundError):
        LabelDistances.from_safetensors(tmp_path / "absent.safetensors")
