"""What is kept is checked: a flipped byte changes no result, and a full disk leaves no half-written file."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.data.features import cache
from otdd_flash.flows import Checkpoint, Flow, PotentialEnergy, SaveCheckpoint
from otdd_flash.labels import label_distances
from otdd_flash.matrix import collect
from otdd_flash.matrix.store import Store
from otdd_flash.tensor_files import read_record, read_tensors, save_tensors, write_record

pytest.importorskip("safetensors")
X = torch.arange(12.0).reshape(6, 2)
SET = otdd.from_arrays(X, [0, 0, 0, 1, 1, 1])
QUADRATIC = PotentialEnergy(lambda x: x.square().sum(1))


def flips(path: Path, count: int) -> list[bytes]:
    """Copies of a file with one byte changed, at positions spread over all of it; every second one in its top bit."""
    content = path.read_bytes()
    positions = sorted({i * len(content) // count for i in range(count)} | {0, 3, 7})
    out = []
    for i, position in enumerate(positions):
        changed = bytearray(content)
        changed[position] ^= (1, 128)[i % 2]
        out.append(bytes(changed))
    return out


def labels(folder: Path) -> object:
    return label_distances(SET, SET, cache_dir=folder).joint().tolist()


def matrix(folder: Path) -> object:
    sets = {"one": SET, "two": otdd.from_arrays(X + 1, [0, 0, 0, 1, 1, 1])}
    found = otdd.pairwise(sets, folder=folder, epsilon=1.0, progress=False)
    return found.values.tolist()


def drift(folder: Path) -> object:
    return (
        otdd.DriftCheck(SET, permutations=19, cache=folder, null="reference").update(SET.subset([0, 3])).compute().null
    )


def embedding(folder: Path) -> object:
    found = cache.read(folder, "key", len(X))
    if found is None:
        cache.write(folder, "key", X, {"embedder": "one"})
        found = X
    return found.tolist()


@pytest.mark.parametrize("make", [labels, matrix, drift, embedding])
def test_a_flipped_byte_is_made_anew_with_a_warning(tmp_path: Path, make: Callable[[Path], object]) -> None:
    whole = tmp_path / "whole"
    expected = make(whole)
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    read = 0
    for name in files:
        for damaged in flips(whole / name, 6):
            shutil.copytree(whole, tmp_path / "copy", dirs_exist_ok=True)
            (tmp_path / "copy" / name).write_bytes(damaged)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert make(tmp_path / "copy") == expected, name
            read += any(str(name) in str(warning.message) for warning in told)
    assert read >= 6, "damage is told by the name of the file"


def attempt(read: Callable[[], Any], path: Path) -> Any:
    """What is read, or ``None`` where the file is refused by its name."""
    try:
        return read()
    except ValueError as error:
        told = str(error)
    assert str(path) in told
    return None


def test_every_byte_of_a_kept_file_counts(tmp_path: Path) -> None:
    record, path, table = {"a": [0.1, 2], "b": {"c": None}}, tmp_path / "a.json", tmp_path / "a.safetensors"
    write_record(record, path)
    tensors = {"x": X, "one": torch.tensor(3), "none": torch.zeros(0, 2), "flag": torch.tensor([True])}
    save_tensors(tensors, table, kind="a test", record=record)
    assert read_record(path) == record
    refused = 0
    for damaged in flips(path, 10_000):
        path.write_bytes(damaged)
        found = attempt(lambda: read_record(path), path)
        refused += found is None
        assert found in (None, record), "other white space alone gives the same record"
    assert refused > 90
    for damaged in flips(table, 10_000):
        table.write_bytes(damaged)
        read = attempt(lambda: read_tensors(table, kind="a test"), table)
        if read is not None:
            assert read[0] == record
            assert all(torch.equal(read[1][name], tensor) for name, tensor in tensors.items())


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    flow = Flow(QUADRATIC)
    whole = flow.run(SET, steps=4)
    flow.run(SET, steps=3, callbacks=[SaveCheckpoint(path, every=2)])
    for damaged in flips(path, 12):
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"checkpoint\.safetensors.*checkpoint\.previous\.safetensors"):
            earlier = Checkpoint.load(path)
        assert earlier.tree["step"] == 2
    again = flow.run(SET, steps=4, callbacks=[SaveCheckpoint(path)], resume=earlier)
    assert torch.equal(again.data.x, whole.data.x)
    assert Checkpoint.load(path).tree["step"] == 4


def test_a_damaged_checkpoint_alone_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    Flow(QUADRATIC).run(SET, steps=0, callbacks=[SaveCheckpoint(path)])
    path.with_name("checkpoint.previous.safetensors").unlink()
    for damaged in flips(path, 40):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors"):
            Checkpoint.load(path)


def test_a_damaged_index_of_a_matrix_is_refused_or_the_same(tmp_path: Path) -> None:
    expected = matrix(tmp_path)
    path = tmp_path / "matrix.json"
    for damaged in flips(path, 20):
        path.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert collect(tmp_path).values.tolist() == expected
            except FileNotFoundError as error:
                told = str(error)
                assert "is damaged" in told


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("broken", [(os, "replace"), (Path, "write_text")])
def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple) -> None:
    store = Store(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(*broken, full)
        with pytest.raises(OSError, match="No space left"):
            store.write("pairs", "key", {"value": 1.0})
        with pytest.raises(OSError, match="No space left"):
            store.write_first("settings", "key", {"value": 1.0})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_disk_that_fills_while_tensors_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors
    import safetensors.torch

    def half(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise safetensors.SafetensorError("I/O error: No space left on device")

    kept = tmp_path / "kept.safetensors"
    save_tensors({"x": X}, kept, kind="a test", record={})
    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(OSError, match=r"kept\.safetensors cannot be written: .*No space left"):
        save_tensors({"x": X + 1}, kept, kind="a test", record={})
    assert list(tmp_path.iterdir()) == [kept]
    assert torch.equal(read_tensors(kept, kind="a test")[1]["x"], X)


def test_settings_that_are_damaged_are_written_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.write_first("settings", "key", {"epsilon": 1.0}) == {"epsilon": 1.0}
    assert store.write_first("settings", "key", {"epsilon": 2.0}) == {"epsilon": 1.0}
    path = store.path("settings", "key")
    path.write_text(path.read_text().replace("1.0", "7.0"))
    with pytest.warns(UserWarning, match=r"key\.json"):
        assert store.write_first("settings", "key", {"epsilon": 1.0}) == {"epsilon": 1.0}
    assert store.read("settings", "key") == {"epsilon": 1.0}
