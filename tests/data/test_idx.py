"""Any file in the idx form, with the labels that belong to it."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from otdd_flash import load

PICTURES = np.random.default_rng(0).integers(0, 256, (6, 4, 5), dtype=np.uint8)
LABELS = np.array([2, 0, 1, 2, 0, 1], dtype=np.uint8)
KINDS = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def write_idx(path, array):
    header = bytes([0, 0, KINDS[array.dtype.name], array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    content = header + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(("images", "labels"), [
    ("a-images-idx3-ubyte.gz", "a-labels-idx1-ubyte.gz"),
    ("a-images-idx3-ubyte", "a-labels-idx1-ubyte.gz"),
    ("a-images.idx3-ubyte.gz", "a-labels.idx1-ubyte"),
    ("images.idx", "labels.idx"),
])  # fmt: skip
def test_labels_are_found_by_the_name_of_the_pictures(tmp_path, images, labels):
    path = write_idx(tmp_path / images, PICTURES)
    write_idx(tmp_path / labels, LABELS)
    data = load(f"idx:{path}", class_names=["ant", "bee", "cow"])
    assert torch.equal(data.x, torch.from_numpy(PICTURES.reshape(6, 20) / np.float32(255)))
    assert (data.image_shape, data.levels, data.class_names) == ((4, 5), 255, ("ant", "bee", "cow"))
    assert data.y.tolist() == LABELS.tolist()
    assert f"labels from {labels}" in data.notes


def test_labels_by_name_here_beside_the_pictures_or_under_the_root(tmp_path):
    path = write_idx(tmp_path / "some.bin", PICTURES)
    with pytest.raises(FileNotFoundError, match=r"labels of .*some\.bin are not beside it .*labels="):
        load("idx", path=path)
    write_idx(tmp_path / "y.gz", LABELS)
    for given in ({"path": path, "labels": tmp_path / "y.gz"}, {"path": path, "labels": "y.gz"},
                  {"path": "some.bin", "labels": "y.gz", "data_root": tmp_path}):  # fmt: skip
        assert load("idx", **given).y.tolist() == LABELS.tolist()
    with pytest.raises(FileNotFoundError, match=r"there is no file labels='z\.gz'"):
        load("idx", path=path, labels="z.gz")


def test_a_folder_has_splits(tmp_path):
    for prefix, part in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", PICTURES[part])
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", LABELS[part])
    assert (load(f"idx:{tmp_path}").n, load(f"idx:{tmp_path}", split="test").n) == (4, 2)
    with pytest.raises(FileNotFoundError, match=r"no idx file val-images-idx3-ubyte.*'t10k-images-idx3-ubyte\.gz'"):
        load(f"idx:{tmp_path}", split="val")
    with pytest.raises(ValueError, match="is one file, of one split"):
        load(f"idx:{tmp_path}/train-images-idx3-ubyte.gz", split="test")


@pytest.mark.parametrize("dtype", list(KINDS))
def test_every_type_of_value_and_number_of_axes(tmp_path, dtype):
    write_idx(tmp_path / "labels.idx", LABELS.astype("int32"))
    for shape in ((6,), (6, 3), (6, 3, 2, 2)):
        values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        data = load(f"idx:{write_idx(tmp_path / 'images.idx', values)}")
        scale = 255 if len(shape) > 2 and data.levels == 255 else 1
        assert (data.x * scale).round().flatten().tolist() == values.flatten().tolist()
        assert data.class_names == ("0", "1", "2")


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = write_idx(tmp_path / "images.idx", PICTURES)
    write_idx(tmp_path / "labels.idx", LABELS[:5])
    with pytest.raises(ValueError, match=r"images\.idx holds 6 samples, .*labels\.idx 5 labels"):
        load(f"idx:{path}")
    whole = path.read_bytes()
    for content, says in (
        (whole[:-1], "is damaged: 119 values where the header says"),
        (bytes([0, 0, 8, 4]) + b"\xff" * 16 + whole[20:], "is damaged: .* 4294967295"),
        (b"\x89PNG" + whole, "is not an idx file"),
        (bytes([0, 0, 8, 0]), "is not an idx file"),
        (b"", "is not an idx file"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=says):
            load(f"idx:{path}")
