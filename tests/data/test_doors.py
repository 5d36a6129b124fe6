"""The same 500 pictures through every door are the same data set."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

import otdd_flash as otdd

N = 500
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class PicturesLikeTorchvision(Dataset):
    """Decodes to PIL, keeps ``targets``, and counts what it decodes."""

    classes = NAMES

    def __init__(self, pictures, labels, transform=None):
        self.data, self.targets, self.transform, self.decoded = pictures, torch.as_tensor(labels), transform, 0

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        from PIL import Image

        self.decoded += 1
        picture = Image.fromarray(self.data[index])
        return picture if self.transform is None else self.transform(picture), int(self.targets[index])


def plain_dataset(pictures, labels, folder):
    return otdd.from_torch(PicturesLikeTorchvision(pictures, labels))


def nested_subset(pictures, labels, folder):
    shuffled = np.random.default_rng(0).permutation(2 * N)
    where = np.empty(2 * N, dtype=int)
    where[shuffled] = np.arange(2 * N)  # picture i of the first N stands at where[i]
    doubled = np.concatenate([pictures, pictures[::-1]])[shuffled]
    base = PicturesLikeTorchvision(doubled, np.concatenate([labels, labels[::-1]])[shuffled])
    outer = Subset(base, where[: N + 50][::-1].tolist())
    return otdd.from_torch(Subset(outer, list(range(N + 49, 49, -1))))


def loader(pictures, labels, folder):
    from torchvision.transforms.v2 import Compose, ToDtype, ToImage

    to_float = Compose([ToImage(), ToDtype(torch.float32, scale=True)])
    return otdd.from_torch(DataLoader(PicturesLikeTorchvision(pictures, labels, to_float), batch_size=64, shuffle=True))


def hugging_face(style):
    def build(pictures, labels, folder):
        datasets = pytest.importorskip("datasets")
        from PIL import Image

        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
        content = {"image": [Image.fromarray(picture) for picture in pictures], "label": labels.tolist()}
        ds = datasets.Dataset.from_dict(content, features=features)
        if style is not None:
            ds.set_format(style)
        return otdd.from_huggingface(ds)

    build.__name__ = f"hugging_face_{style}"
    return build


def image_folder(pictures, labels, folder):
    from PIL import Image

    for i, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(picture).save(folder / str(label) / f"{i:04d}.png")
    return otdd.load("imagefolder", path=folder)


def npz(pictures, labels, folder):
    np.savez(folder / "some.npz", x_train=pictures, y_train=labels)
    return otdd.load(f"npz:{folder / 'some.npz'}")


def parquet(pictures, labels, folder):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(pictures.reshape(len(pictures), -1)).add_prefix("pixel").assign(label=labels)
    frame.to_parquet(folder / "some.parquet")
    return otdd.load("parquet", path=folder / "some.parquet", image_shape=(28, 28))


def parquet_of_encoded_pictures(pictures, labels, folder):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    content = {"image": [Image.fromarray(picture) for picture in pictures], "label": labels.tolist()}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    datasets.Dataset.from_dict(content, features=features).to_parquet(folder / "some.parquet")
    data = otdd.load("parquet", path=folder / "some.parquet")
    assert data.class_names == tuple(NAMES)
    return data


def csv(pictures, labels, folder):
    frame = pd.DataFrame(pictures.reshape(len(pictures), -1)).add_prefix("pixel").assign(digit=labels)
    frame.to_csv(folder / "some.csv.gz", index=False)
    return otdd.load("csv", path=folder / "some.csv.gz", label="digit", image_shape=(28, 28))


DOORS = [plain_dataset, nested_subset, loader, image_folder, npz, parquet, parquet_of_encoded_pictures, csv]
DOORS += [hugging_face(style) for style in (None, "numpy", "torch", "arrow", "pandas")]


@pytest.fixture(scope="module")
def mnist(data_root):
    def read(name, offset):
        with gzip.open(data_root / "mnist" / name) as stream:
            return np.frombuffer(stream.read(), dtype=np.uint8, offset=offset)

    pictures = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)[:N]
    return pictures, read("t10k-labels-idx1-ubyte.gz", 8)[:N].astype(np.int64)


@pytest.mark.data
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_every_door_gives_the_same_features_and_labels(mnist, door, tmp_path):
    pictures, labels = mnist
    expected = torch.from_numpy(pictures.reshape(N, -1) / np.float32(255))
    data = door(pictures, labels, tmp_path)
    order = torch.arange(N)
    if door is image_folder:  # files come class by class
        order = torch.from_numpy(np.argsort(labels, kind="stable"))
    assert torch.equal(data.x, expected[order])
    assert torch.equal(data.y, torch.from_numpy(labels)[order])
    assert (data.levels, data.image_shape, data.num_classes, data.dropped) == (255, (28, 28), 10, {})


@pytest.mark.data
def test_a_draw_is_the_same_through_every_door_that_keeps_the_order(mnist, tmp_path):
    pictures, labels = mnist
    ids = otdd.data.subsample(otdd.from_arrays(pictures, labels), 60, seed=5).ids
    dataset = PicturesLikeTorchvision(pictures, labels)
    assert torch.equal(otdd.from_torch(dataset, max_samples=60, seed=5).ids, ids)
    assert dataset.decoded == 60
    npz(pictures, labels, tmp_path)
    assert torch.equal(otdd.load("npz", path=tmp_path / "some.npz", max_samples=60, seed=5).ids, ids)
