"""The distance does not see how the data came in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash.data import TextDataset

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def one_thread():
    """On problems this small a second thread only waits, badly so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def value(a, b, **options):
    return otdd.dataset_distance(a, b, device="cpu", **{"tol": 1e-6, **options}).value


def sample(n=60, d=5, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (rng.normal(size=(n, d)) + y[:, None]).astype(dtype), y


def test_names_and_ids_of_classes_do_not_matter():
    (x, y), (z, t) = sample(), sample(50, seed=1)
    target = otdd.from_arrays(z, t)
    expected = value(otdd.from_arrays(x, y), target)
    for labels in (y + 3, 10 * y - 5, [("dog", "cat", "eel")[i] for i in y], np.eye(4)[y], torch.tensor(y).float()):
        assert value(otdd.from_arrays(x, labels), target) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [20, 200])
def test_half_precision_input_is_its_float32_cast(dtype, n):
    x, y = (torch.from_numpy(part) for part in sample(n))
    target = otdd.from_arrays(*sample(40, seed=2))
    half = value(otdd.from_arrays(x.to(dtype), y), target)
    assert half == value(otdd.from_arrays(x.to(dtype).float(), y), target)


def test_rows_repeated_k_times_are_rows_of_weight_k():
    x, y = sample(30, dtype=np.float64)
    target = otdd.from_arrays(*sample(40, dtype=np.float64, seed=3))
    times = RNG.integers(1, 4, size=30)
    repeated = otdd.from_arrays(np.repeat(x, times, axis=0), np.repeat(y, times))
    weighted = otdd.from_arrays(x, y, weights=times)
    assert value(repeated, target, tol=1e-9) == pytest.approx(value(weighted, target, tol=1e-9), rel=1e-7)


@pytest.mark.parametrize("style", [None, "numpy", "torch", "arrow"])
def test_hugging_face_formats_have_one_distance(style):
    datasets = pytest.importorskip("datasets")
    x, y = sample()
    ds = datasets.Dataset.from_dict({"v": x.tolist(), "label": [f"class {i}" for i in y]}).with_format(style)
    target = otdd.from_arrays(*sample(seed=4))
    expected = value(otdd.from_arrays(x.astype(np.float64), y), target)
    assert value(otdd.from_huggingface(ds, features="v"), target) == pytest.approx(expected, rel=1e-6)
    assert value(otdd.from_arrays(x.astype(np.float64), ds["label"]), target) == pytest.approx(expected, rel=1e-6)


@pytest.mark.data
def test_pictures_in_another_order_have_the_same_distance(data_root, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    mnist = otdd.load("mnist", max_samples=120, data_root=data_root)
    fashion = otdd.load("fashion_mnist", max_samples=120, data_root=data_root)
    for i, (row, label) in enumerate(zip(mnist.x, mnist.y.tolist(), strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray((row * 255).round().to(torch.uint8).reshape(28, 28).numpy()).save(
            tmp_path / str(label) / f"{i}.png"
        )
    folder = otdd.load("imagefolder", path=tmp_path)
    assert folder.fingerprint != mnist.fingerprint
    assert value(folder, fashion, tol=1e-7) == pytest.approx(value(mnist, fashion, tol=1e-7), rel=1e-6)


def test_texts_are_refused_until_they_are_embedded():
    words = TextDataset(("a", "b"), torch.tensor([0, 1]), ("x", "y"))
    with pytest.raises(TypeError, match=r"got TextDataset.*texts need an embedder"):
        otdd.dataset_distance(words, words)
