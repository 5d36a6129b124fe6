from __future__ import annotations

import numpy as np
import pytest
import torch

from otdd_flash import from_arrays, from_huggingface, from_torch, load
from otdd_flash.data import TextDataset

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")

RGB = np.random.default_rng(3).integers(0, 256, size=(9, 6, 5, 3), dtype=np.uint8)
LABELS = [2, 0, 1, 2, 0, 1, 2, -1, 0]
NAMES = ["ant", "bee", "cow"]
FORMATS = [None, "numpy", "torch", "arrow", "pandas"]


def picture_set(pictures=None, labels=LABELS):
    pictures = [Image.fromarray(picture) for picture in RGB] if pictures is None else pictures
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict({"picture": pictures, "label": labels}, features=features)


@pytest.mark.parametrize("style", FORMATS)
def test_class_labels_names_and_unlabelled_rows_in_every_format(style):
    data = from_huggingface(picture_set().with_format(style))
    kept = [i for i, label in enumerate(LABELS) if label >= 0]
    assert data.class_names == tuple(NAMES)
    assert data.y.tolist() == [LABELS[i] for i in kept]
    assert data.ids.tolist() == kept
    assert data.dropped == {"unlabelled": 1}
    expected = torch.from_numpy(RGB[kept].transpose(0, 3, 1, 2).reshape(8, -1) / np.float32(255))
    assert torch.equal(data.x, expected)
    assert data.image_shape == (3, 6, 5)


@pytest.mark.parametrize("style", FORMATS)
def test_a_lazy_column_passed_as_labels_is_the_same_in_every_format(style):
    """C13."""
    ds = datasets.Dataset.from_dict({"v": [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]], "label": ["u", "v", "u"]})
    x = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
    data = from_arrays(x, ds.with_format(style)["label"])
    assert data.fingerprint == from_arrays(x, ["u", "v", "u"]).fingerprint
    whole = from_huggingface(ds.with_format(style), features="v")
    assert whole.fingerprint == data.fingerprint  # float64 lists stay float64


def test_the_index_mapping_of_a_shuffled_set_is_followed():
    ds = picture_set().select([6, 2, 4]).with_format("torch")
    data = from_huggingface(ds)
    assert data.y.tolist() == [2, 1, 0]
    assert torch.equal(data.x[1], torch.from_numpy(RGB[2].transpose(2, 0, 1).reshape(-1) / np.float32(255)))


@pytest.mark.parametrize("labels", [["a", "b", None, "a"], [1, 0, None, 1], [1, 0, -1, 1], [True, False, None, True]])
def test_string_integer_and_missing_labels(labels):
    ds = datasets.Dataset.from_dict({"f": [1.0, 2.0, 3.0, 4.0], "g": [0, 1, 2, 3], "label": labels})
    data = from_huggingface(ds, features=["f", "g"])
    assert data.x.tolist() == [[1, 0], [2, 1], [4, 3]]
    assert data.class_counts.sum() == 3
    assert data.dropped == {"unlabelled": 1}


def test_one_hot_and_ragged_label_lists():
    ds = datasets.Dataset.from_dict({"f": [[1.0], [2.0]], "label": [[0, 1], [1, 0]]})
    assert from_huggingface(ds, features="f").y.tolist() == [1, 0]
    ragged = datasets.Dataset.from_dict({"f": [[1.0], [2.0]], "label": [[0, 1], [1]]})
    with pytest.raises(ValueError, match="not one-hot rows"):
        from_huggingface(ragged, features="f")


def test_nested_lists_and_fixed_arrays_are_pictures():
    plain = datasets.Dataset.from_dict({"img": RGB[..., 0].tolist(), "label": LABELS})
    typed = plain.cast_column("img", datasets.Array2D((6, 5), "uint8"))
    expected = from_arrays(RGB[..., 0], LABELS).fingerprint
    assert from_huggingface(plain, features="img").fingerprint == expected
    assert from_huggingface(typed.with_format("numpy"), features="img").fingerprint == expected


MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"]


@pytest.mark.parametrize("mode", MODES)
def test_every_picture_mode(mode):
    grey = [Image.fromarray(picture[..., 0]) for picture in RGB]
    colour = [Image.fromarray(picture) for picture in RGB]
    if mode == "I;16":
        pictures = [Image.fromarray(picture[..., 0].astype(np.uint16) * 257) for picture in RGB]
        expected = RGB[..., :1].transpose(0, 3, 1, 2)
    elif mode in ("I", "F"):
        factor = 257 if mode == "I" else 1 / 255
        dtype = np.int32 if mode == "I" else np.float32
        pictures = [Image.fromarray((p[..., 0].astype(dtype) * factor).astype(dtype)) for p in RGB]
        expected = RGB[..., :1].transpose(0, 3, 1, 2)
    elif mode in ("1", "L", "LA"):
        pictures = [picture.convert(mode) for picture in grey]
        expected = np.stack([np.asarray(picture.convert("L"))[None] for picture in pictures])
    else:
        pictures = [picture.convert(mode) for picture in colour]
        expected = np.stack([np.asarray(picture.convert("RGB")).transpose(2, 0, 1) for picture in pictures])
    data = from_torch(list(zip(pictures, [0, 1, 2] * 3, strict=True)))
    np.testing.assert_allclose(data.x.numpy(), expected.reshape(9, -1) / 255, atol=1e-6)
    assert any("alpha dropped" in note for note in data.notes) == (mode in ("LA", "RGBA"))
    assert any("16-bit" in note for note in data.notes) == (mode in ("I;16", "I"))


def test_grey_among_coloured_pictures_and_sizes_that_differ():
    mixed = [Image.fromarray(RGB[0]), Image.fromarray(RGB[1][..., 0])]
    data = from_torch(list(zip(mixed, [0, 1], strict=True)))
    assert torch.equal(data.x[1].reshape(3, 30)[0], data.x[1].reshape(3, 30)[2])
    assert any("three equal channels" in note for note in data.notes)
    sizes = [(Image.fromarray(RGB[0]), 0), (Image.fromarray(RGB[1][:4]), 1)]
    with pytest.raises(ValueError, match=r"differ in size.*\(3, 6, 5\).*\(3, 4, 5\) in row 1.*resize=\(h, w\)"):
        from_torch(sizes)
    resized = from_torch(sizes, resize=(6, 5))
    assert (resized.levels, resized.image_shape) == (255, (3, 6, 5))
    assert torch.equal(resized.x[0], torch.from_numpy(RGB[0].transpose(2, 0, 1).reshape(-1) / np.float32(255)))


def test_resizing_by_two_averages_as_the_closed_form_says():
    flat = np.full((8, 8), 40, dtype=np.uint8)
    flat[:, 4:] = 200
    data = from_torch([(Image.fromarray(flat), 0), (torch.from_numpy(flat), 1)], resize=(1, 8))
    assert torch.equal(data.x[0], torch.from_numpy(flat[0] / np.float32(255)))
    assert torch.equal(data.x[0], data.x[1])


@pytest.mark.parametrize("style", [None, "numpy", "torch"])
def test_streaming_sets_are_drawn_by_a_reservoir(style):
    stream = picture_set().to_iterable_dataset().with_format(style)
    data = from_huggingface(stream)
    assert torch.equal(data.x, from_huggingface(picture_set()).x)
    assert data.class_names == tuple(NAMES)
    one, again = (from_huggingface(stream, max_samples=4, seed=9) for _ in range(2))
    assert one.n == 4
    assert one.fingerprint == again.fingerprint
    assert from_huggingface(stream, classes=["bee"]).class_names == ("bee",)
    with pytest.raises(ValueError, match="max_samples must be a positive integer"):
        from_huggingface(stream, max_samples=0)
    numbers = datasets.Dataset.from_dict({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]}).to_iterable_dataset()
    assert from_huggingface(numbers, features=["a", "b"]).x.tolist() == [[1, 3], [2, 4]]


def test_a_users_transform_is_honoured():
    ds = picture_set().with_transform(lambda rows: {"picture": [np.ones(4) for _ in rows["picture"]]})
    assert from_huggingface(ds, image="picture").x.shape == (8, 4)


def test_text_columns_go_through_an_embedder_or_are_refused():
    ds = datasets.Dataset.from_dict({"sentence": ["good", "bad", "fine"], "n": [1, 2, 3], "label": [1, 0, 1]})
    data = from_huggingface(ds, text="sentence")
    assert isinstance(data, TextDataset)
    assert data.texts == ("good", "bad", "fine")
    with pytest.raises(ValueError, match=r"columns \['sentence'\] hold text: pass text='sentence' and an embedder"):
        from_huggingface(ds, features=["sentence", "n"])
    with pytest.raises(ValueError, match="name the columns to compare"):
        from_huggingface(ds)
    holes = datasets.Dataset.from_dict({"sentence": [None, "bad"], "label": [1, 0]})
    with pytest.raises(ValueError, match="1 texts are missing, the first in row 0"):
        from_huggingface(holes, text="sentence")


def test_wrong_columns_and_kinds_are_refused():
    ds = datasets.Dataset.from_dict({"f": [[1.0], [2.0, 3.0]], "g": [1.0, None], "label": [0, 1]})
    with pytest.raises(ValueError, match=r"no column 'image' in \['f', 'g', 'label'\]"):
        from_huggingface(ds, image="image")
    with pytest.raises(ValueError, match="lists of different lengths"):
        from_huggingface(ds, features="f")
    with pytest.raises(ValueError, match=r"'g' has 1 missing values .*, the first in row 1"):
        from_huggingface(ds, features=["g"])
    with pytest.raises(ValueError, match="give one of"):
        from_huggingface(ds, image="f", features="g")
    with pytest.raises(ValueError, match=r"several splits.*ds\['train'\]"):
        from_huggingface(datasets.DatasetDict({"train": ds}), features="f")
    with pytest.raises(ValueError, match=r"use otdd_flash\.from_huggingface"):
        from_torch(ds)


def test_a_saved_set_is_loaded_by_name(tmp_path):
    picture_set().save_to_disk(tmp_path / "animals")
    data = load(f"hf:{tmp_path / 'animals'}", image="picture", classes=["ant", "cow"])
    assert data.class_names == ("ant", "cow")
    assert data.name == "animals"
    datasets.DatasetDict({"test": picture_set()}).save_to_disk(tmp_path / "both")
    assert load("hf", path=tmp_path / "both", split="test").n == 8
    (tmp_path / "table").mkdir()
    picture_set().to_parquet(tmp_path / "table" / "train.parquet")
    assert load(f"hf:{tmp_path / 'table'}", split="train").n == 8


def test_a_set_that_cannot_be_fetched_is_said_in_one_line(monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no route to the hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(FileNotFoundError, match="no route to the hub") as caught:
        load("hf:someone/something")
    assert "\n" not in str(caught.value)
