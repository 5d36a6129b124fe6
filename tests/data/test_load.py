from __future__ import annotations

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from otdd_flash import dataset_distance, from_arrays, load
from otdd_flash.data import sources, subsample
from otdd_flash.data.sizes import PictureSize, resize_pictures


def bundled_splits():
    return [("digits", 1797, 64, 10), ("wine", 178, 13, 3), ("iris", 150, 4, 3), ("breast_cancer", 569, 30, 2)]


@pytest.mark.parametrize(("name", "n", "d", "c"), bundled_splits())
def test_bundled_sets_have_their_published_sizes(name, n, d, c):
    data = load(name)
    assert (data.n, data.d, data.num_classes) == (n, d, c)
    assert data.notes[0] == "no splits: all rows"
    assert load(name, split="all").fingerprint == data.fingerprint
    with pytest.raises(ValueError, match=r"has the splits \['all'\], got split='test'"):
        load(name, split="test")


def test_digits_are_pictures_in_the_unit_interval():
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.image_shape == (8, 8)
    np.testing.assert_array_equal(data.x.double().numpy(), load_digits().data / 16)


@pytest.mark.data
@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion_mnist", 0.2860, 0.3530)])
def test_mean_and_deviation_are_the_published_ones(data_root, name, mean, std):
    data = load(name, data_root=data_root)
    assert (data.n, data.d, data.num_classes, data.levels, data.image_shape) == (60_000, 784, 10, 255, (28, 28))
    x = data.x.double()
    assert x.mean().item() == pytest.approx(mean, abs=5e-5)
    assert x.std().item() == pytest.approx(std, abs=5e-5)
    assert data.class_counts.sum() == 60_000


@pytest.mark.data
def test_other_real_sets_have_their_published_class_counts(data_root):
    assert load("mnist", split="test", data_root=data_root).class_counts.tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert load("kmnist", split="test", data_root=data_root).class_counts.tolist() == [1000] * 10
    usps = load("usps", data_root=data_root)
    assert usps.class_counts.tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert "ESL" in usps.notes[0]
    cifar = load("cifar10", split="test", data_root=data_root)
    assert (cifar.n, cifar.d, cifar.image_shape) == (500, 3072, (3, 32, 32))
    assert cifar.class_names[3] == "cat"
    assert cifar.y[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, airplane: the test set's well-known start
    assert "excerpt" in cifar.notes[0]


@pytest.mark.data
def test_the_draw_depends_on_data_and_seed_alone(data_root):
    one = load("mnist", split="test", max_samples=200, data_root=data_root)
    assert one.fingerprint == load("MNIST", split="test", max_samples=200, data_root=data_root).fingerprint
    seeds = [load("mnist", split="test", max_samples=200, seed=s, data_root=data_root) for s in range(5)]
    assert len({data.fingerprint for data in seeds}) == 5
    assert (one.ids.diff() > 0).all()
    assert any("200 of 10000 rows drawn" in note for note in one.notes)
    larger = load("mnist", split="test", max_samples=300, data_root=data_root)
    assert set(one.ids.tolist()) < set(larger.ids.tolist())
    whole = load("mnist", split="test", data_root=data_root)
    assert torch.equal(whole.x[one.ids], one.x)
    assert subsample(whole, 200).fingerprint == one.fingerprint


def test_the_draw_does_not_see_names_devices_or_processes():
    y = np.arange(300) % 7
    x = np.random.default_rng(0).normal(size=(300, 2))
    ids = subsample(from_arrays(x, y), 40, seed=3).ids
    renamed = [f"name {6 - label}" for label in y]  # another sorted order
    assert torch.equal(subsample(from_arrays(x, renamed), 40, seed=3).ids, ids)
    assert torch.equal(subsample(from_arrays(x, np.eye(7)[y]), 40, seed=3).ids, ids)
    code = (
        "import numpy as np, otdd_flash as o; from otdd_flash.data import subsample;"
        "print(subsample(o.from_arrays(np.zeros((300, 2)), np.arange(300) % 7), 40, seed=3).ids.tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        **os.environ, "PYTHONHASHSEED": "77",
    })  # fmt: skip
    assert run.stdout.strip() == str(ids.tolist())


def test_a_draw_is_uniform_over_rows():
    data = from_arrays(np.zeros((100, 1)), np.zeros(100, dtype=int))
    counts = np.zeros(100)
    for seed in range(400):
        counts[subsample(data, 25, seed=seed).ids.numpy()] += 1
    assert counts.sum() == 400 * 25
    assert ((counts - 100) ** 2 / 75).sum() < 149  # chi-square with 99 degrees of freedom, 99.9 % quantile 149


def test_subset_keeps_weights_normalised_and_ids():
    data = from_arrays(np.eye(50), np.arange(50) % 3, weights=np.arange(1, 51))
    part = subsample(data, 10, seed=1)
    raw = (part.ids + 1).double()
    assert torch.allclose(part.weights, raw / raw.sum(), rtol=1e-14)
    assert subsample(data, 50) is data
    assert subsample(data, None) is data


def test_classes_are_chosen_by_label_or_by_name():
    by_name = load("iris", classes=["setosa", "virginica"])
    assert by_name.class_names == ("setosa", "virginica")
    assert by_name.class_counts.tolist() == [50, 50]
    assert by_name.fingerprint == load("iris", classes=[0, 2]).fingerprint
    assert by_name.ids[-1] == 149
    with pytest.raises(ValueError, match=r"classes=\['rose'\] are not in iris"):
        load("iris", classes=["rose"])


def test_unknown_names_options_and_values_are_refused():
    assert load("Breast-Cancer").name == "breast_cancer"
    with pytest.raises(ValueError, match=r"no data set named 'mnits'; did you mean mnist.*There are .*iris"):
        load("mnits")
    with pytest.raises(ValueError, match=r"does not take \['colour'\]"):
        load("iris", colour="red")
    with pytest.raises(ValueError, match="max_samples must be a positive integer"):
        load("iris", max_samples=0)
    with pytest.raises(ValueError, match="max_samples must be a positive integer"):
        load("iris", max_samples=2.5)
    assert load("iris", max_samples=np.int64(5)).n == 5
    with pytest.raises(ValueError, match="classes is empty"):
        load("iris", classes=[])
    with pytest.raises(ValueError, match="is not a folder"):
        load("mnist", data_root="no/such/folder")
    assert set(sources()) >= {"mnist", "iris"}


def test_resize_brings_pictures_to_one_size_on_their_grid():
    eight = load("digits")
    four = load("digits", resize=(4, 4))
    assert (four.d, four.image_shape) == (16, (4, 4))
    pictures = eight.x.reshape(-1, 1, 8, 8)
    expected = torch.nn.functional.interpolate(pictures, size=(4, 4), mode="bilinear", antialias=True)
    assert torch.allclose(four.x, expected.reshape(-1, 16), atol=1e-6)
    assert four.notes[-1] == "pictures resized from 8 x 8 to 4 x 4"
    assert load("digits", resize=(8, 8)).fingerprint == eight.fingerprint
    assert torch.equal(four.y, eight.y)


def test_resized_8_bit_pictures_are_those_of_the_reader_that_resizes(tmp_path):
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, size=(6, 9, 7, 3), dtype=np.uint8)
    for i, picture in enumerate(pixels):
        (tmp_path / "pictures" / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        pil.fromarray(picture).save(tmp_path / "pictures" / f"class{i % 2}" / f"{i}.png")
    order = [0, 2, 4, 1, 3, 5]
    np.savez(tmp_path / "pictures.npz", x=pixels[order], y=[0, 0, 0, 1, 1, 1])
    folder = load("imagefolder", path=tmp_path / "pictures", resize=(4, 5))
    archive = load("npz", path=tmp_path / "pictures.npz", resize=[4, 5])
    assert folder.levels == archive.levels == 255
    assert folder.image_shape == archive.image_shape == (3, 4, 5)
    assert torch.equal(folder.x, archive.x)


@pytest.mark.parametrize("size", [28, (28,), (28, 0), (2.5, 3), "28"])
def test_resize_must_be_two_positive_integers(size):
    with pytest.raises(ValueError, match=r"resize must be \(h, w\)"):
        load("digits", resize=size)


def test_padding_keeps_the_pixels_and_a_margin_keeps_the_shape():
    eight = load("digits")
    pictures = eight.x.reshape(-1, 8, 8)
    padded = load("digits", resize=(11, 10), fit="pad")
    assert padded.image_shape == (11, 10)
    assert torch.equal(padded.x.reshape(-1, 11, 10), torch.nn.functional.pad(pictures, (1, 1, 1, 2)))
    assert padded.notes[-1] == "pictures brought by fit=pad from 8 x 8 to 11 x 10"
    framed = load("digits", resize=(28, 28), fit="pad:4").x.reshape(-1, 28, 28)
    inner = torch.nn.functional.interpolate(pictures[:, None], size=(20, 20), mode="bilinear", antialias=True)[:, 0]
    assert torch.allclose(framed, torch.nn.functional.pad(inner, (4, 4, 4, 4)), atol=1e-6)
    assert load("digits", resize=(8, 8), fit="pad:2").fingerprint == eight.fingerprint  # of that size already


def test_padding_shrinks_with_the_aspect_ratio_and_stays_on_the_grid():
    tall = np.zeros((2, 12, 6), dtype=np.uint8)
    tall[:, :6], tall[:, 6:] = 100, 200
    data = from_arrays(tall, [0, 1])
    half = resize_pictures(data, PictureSize.asked((6, 6), "pad"))
    picture = (half.x[0] * 255).round().reshape(6, 6)
    assert half.levels == 255
    assert picture[:, [0, 4, 5]].count_nonzero() == 0  # 6 x 3 in the middle of 6 x 6
    assert picture[[0, 5], 1:4].tolist() == [[100] * 3, [200] * 3]


@pytest.mark.parametrize("fit", ["fill", "pad:", "pad:-1", "pad:x", "stretch:2", 4, None, "pad:14"])
def test_fit_must_be_a_way_that_there_is(fit):
    with pytest.raises((TypeError, ValueError), match="fit"):
        load("digits", resize=(28, 28), fit=fit)


def test_fit_without_a_size_is_refused():
    with pytest.raises(ValueError, match=r"fit='pad' says how .* resize=\(h, w\)"):
        load("digits", fit="pad")


@pytest.mark.data
def test_usps_as_mnist_has_its_digits_is_nearer_to_digits_than_to_clothes(data_root):
    digits, clothes = (load(name, max_samples=300, data_root=data_root) for name in ("mnist", "fashion_mnist"))

    def roots(**options):
        usps = load("usps", max_samples=300, resize=(28, 28), data_root=data_root, **options)
        return [dataset_distance(usps, other).value for other in (digits, clothes)]

    for fit in ("pad", "pad:4"):
        to_digits, to_clothes = roots(fit=fit)
        assert to_digits < 0.6 * to_clothes
    to_digits, to_clothes = roots()
    assert to_digits > to_clothes  # stretched, the strokes are as thick as sleeves


@pytest.mark.data
def test_resize_is_for_pictures(data_root):
    with pytest.raises(ValueError, match="resize is for pictures, iris has 4 features"):
        load("iris", resize=(2, 2))
    with pytest.raises(ValueError, match="resize is for pictures, trec holds texts"):
        load("trec", resize=(2, 2), data_root=data_root)


def write_idx(path, array):
    header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    with gzip.open(path, "wb") as stream:
        stream.write(header + array.tobytes())


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    """No data set is anywhere, and torchvision's downloads fail as without a network."""
    from torchvision.datasets import MNIST

    def fail(self):
        raise RuntimeError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("OTDD_DATA", raising=False)
    monkeypatch.setattr(MNIST, "download", fail)
    return tmp_path


def test_folders_are_searched_in_order(empty_home, monkeypatch):
    y = np.array([0, 1, 2], dtype=np.uint8)
    for value, folder in ((10, "first/MNIST/raw"), (20, "second/mnist"), (30, "torch/datasets/mnist")):
        (empty_home / folder).mkdir(parents=True)
        write_idx(empty_home / folder / "t10k-images-idx3-ubyte.gz", np.full((3, 2, 2), value, dtype=np.uint8))
        write_idx(empty_home / folder / "t10k-labels-idx1-ubyte.gz", y)

    def value(**kwargs):
        return round(load("mnist", split="test", **kwargs).x.max().item() * 255)

    assert value() == 30
    monkeypatch.setenv("OTDD_DATA", str(empty_home / "second"))
    assert value() == 20
    assert value(data_root=empty_home / "first") == 10
    assert value(data_root=empty_home / "first" / "MNIST" / "raw") == 10


def test_a_failed_download_says_so_in_one_line_with_the_offline_choices(empty_home):
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist")
    message = str(caught.value)
    assert "\n" not in message
    for part in ("mnist (split 'train')", "no route to host", "data_root= or $OTDD_DATA", "digits"):
        assert part in message
    with pytest.raises(FileNotFoundError, match="downloading is off"):
        load("mnist", download=False)


def test_a_damaged_file_is_not_taken_for_data(empty_home):
    folder = empty_home / "mnist"
    folder.mkdir()
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.zeros(3, dtype=np.uint8))
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03" + np.array([3, 2, 2], dtype=">u4").tobytes())
    with pytest.raises(ValueError, match=r"damaged: 0 values where the header says \[3, 2, 2\]"):
        load("mnist", split="test", data_root=empty_home)


def test_a_name_that_is_no_string_and_a_size_beyond_reason_are_refused():
    for name in (3, None, b"iris"):
        with pytest.raises(TypeError, match="name must be a string"):
            load(name)
    with pytest.raises(ValueError, match=r"asks for 1000000000000 pixels a picture"):
        load("digits", resize=[10**6, 10**6])


@pytest.mark.parametrize("name", ["caltech101", "caltech256"])
def test_looking_for_a_set_makes_no_folder(name, empty_home):
    """torchvision's classes of these sets make their folder before they look into it."""
    pytest.importorskip("torchvision")
    root = empty_home / "root"
    root.mkdir()
    with pytest.raises(FileNotFoundError, match="downloading is off"):
        load(name, data_root=root, download=False)
    assert list(root.iterdir()) == []
