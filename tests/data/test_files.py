from __future__ import annotations

import gzip
import inspect
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from otdd_flash import from_dataframe, from_torch, load
from otdd_flash.data.catalogue import SOURCES

FRAME = pd.DataFrame(
    {"a": [1, 2, 3, 4], "b": [0.5, 1.5, 2.5, 3.5], "kind": ["u", "v", None, "u"], "w": [1, 1, 2, 2]},
    index=[10, 10, 7, 3],
)


def test_data_frames_by_column():
    data = from_dataframe(FRAME, label="kind", weights="w")
    assert data.x.tolist() == [[1, 0.5], [2, 1.5], [4, 3.5]]
    assert data.y.tolist() == [0, 1, 0]
    assert data.ids.tolist() == [0, 1, 3]
    assert data.weights.tolist() == [0.25, 0.25, 0.5]
    assert from_dataframe(FRAME, label="kind", features=["b"]).x.flatten().tolist() == [0.5, 1.5, 3.5]
    assert from_dataframe(FRAME, label="w", features=["a"], class_names={1: "one", 2: "two"}).class_names == (
        "one",
        "two",
    )


def test_frames_with_text_or_holes_are_refused_with_advice():
    with pytest.raises(
        ValueError, match=r"columns \['kind'\] are not numeric: 'kind' holds text, as 'u' in row 0; choose"
    ):
        from_dataframe(FRAME, label="w")
    with pytest.raises(ValueError, match="no column 'colour'"):
        from_dataframe(FRAME, label="colour")
    with pytest.raises(ValueError, match=r"column 'b' has 1 missing values .*, the first in row 2"):
        from_dataframe(FRAME.assign(b=[1.0, 2.0, np.nan, 3.0]), label="w", features=["a", "b"])
    with pytest.raises(ValueError, match=r"must be a data frame .pandas, polars"):
        from_dataframe({"a": [1]}, label="a")
    with pytest.raises(ValueError, match="'a' is there more than once"):
        from_dataframe(pd.DataFrame([[1, 2, 0], [3, 4, 1]], columns=["a", "a", "l"]), label="l")
    texts = from_dataframe(FRAME.assign(kind=["x", "y", "z", "x"]), label="w", text="kind")
    assert texts.texts == ("x", "y", "z", "x")


def test_csv_finds_the_label_or_asks(tmp_path):
    FRAME.rename(columns={"kind": "Class"}).to_csv(tmp_path / "t.csv", index=False)
    data = load(f"csv:{tmp_path / 't.csv'}", features=["a", "b"])
    assert (data.name, data.class_names, data.dropped) == ("t", ("u", "v"), {"unlabelled": 1})
    FRAME.to_csv(tmp_path / "u.csv.gz", index=False)
    with pytest.raises(
        ValueError, match=r"name the label column with label=; the columns are \['a', 'b', 'kind', 'w'\]"
    ):
        load("csv", path=tmp_path / "u.csv.gz")
    assert load("csv:u.csv.gz", data_root=tmp_path, label="kind", features="a").x.flatten().tolist() == [1, 2, 4]
    with pytest.raises(FileNotFoundError, match=r"there is no file 'nowhere\.csv'"):
        load("csv:nowhere.csv")
    with pytest.raises(ValueError, match="needs a path"):
        load("csv")


def test_parquet_tables_and_arrays(tmp_path):
    pytest.importorskip("pyarrow")
    FRAME.to_parquet(tmp_path / "t.parquet")
    assert load("parquet", path=tmp_path / "t.parquet", label="kind", features=["a", "b"]).n == 3
    vectors = pd.DataFrame({"v": [[1.0, 2.0], [3.0, 4.0]], "label": ["x", "y"]})
    vectors.to_parquet(tmp_path / "v.parquet")
    assert load("parquet", path=tmp_path / "v.parquet", features="v").x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="no column 'pic'"):
        load("parquet", path=tmp_path / "v.parquet", image="pic")


def test_npz_names(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"])
    np.savez(tmp_path / "p.npz", x_train=x, y_train=y, x_test=x + 10, y_test=y, extra=y)
    assert load("npz", path=tmp_path / "p.npz", split="test").x[0].tolist() == [10, 11]
    assert load("npz", path=tmp_path / "p.npz", x="x_test", y="extra").x[0].tolist() == [10, 11]
    np.savez(tmp_path / "q.npz", X=x, y=y, weights=[1, 1, 2], class_names=["unused"])
    with pytest.raises(ValueError, match="no features and labels for split 'test'"):
        load("npz", path=tmp_path / "q.npz", split="test")
    with pytest.raises(ValueError, match="must be a mapping"):
        load("npz", path=tmp_path / "q.npz")
    np.savez(tmp_path / "r.npz", X=x, y=y, weights=[1, 1, 2])
    assert load("npz", path=tmp_path / "r.npz").weights.tolist() == [0.25, 0.25, 0.5]
    np.savez(tmp_path / "s.npz", x=x, y=np.array([{1}, 2, 3], dtype=object))
    with pytest.raises(ValueError, match="pickled objects"):
        load("npz", path=tmp_path / "s.npz")
    np.savez(tmp_path / "l.npz", x=x, y=y[:2])
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\), y has \(2,\)"):
        load("npz", path=tmp_path / "l.npz")


def broken_files(folder):
    """(source, file, options, what the error says) of files that are not what their name promises."""
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    whole = folder / "whole.npz"
    np.savez(whole, x=x, y=y)
    table = gzip.compress(b"a,b,label\n" + b"".join(b"%d,%d,%d\n" % (i * 7919, i * i, i % 2) for i in range(500)))
    garbage = np.random.default_rng(0).integers(128, 256, 400, dtype=np.uint8).tobytes()
    for source, name, content, says in (
        ("csv", "truncated.csv.gz", table[: len(table) // 2], "ended before the end-of-stream"),
        ("csv", "plain.csv.gz", b"a,label\n1,2\n", "Not a gzipped file"),
        ("csv", "empty.csv", b"", "it is empty"),
        ("csv", "header.csv", b"a,b,label\n", "a header and no rows"),
        ("csv", "binary.csv", garbage, "codec can't decode"),
        ("npz", "garbage.npz", garbage, "damaged, of another form, or holds pickled objects"),
        ("npz", "empty.npz", b"", "No data left in file"),
        ("npz", "truncated.npz", whole.read_bytes()[:200], "not a zip file"),
        ("parquet", "garbage.parquet", garbage, "Parquet magic bytes not found"),
    ):
        (folder / name).write_bytes(content)
        yield source, folder / name, says
    np.save(folder / "single.npy", x)
    (folder / "single.npy").rename(folder / "single.npz")
    yield "npz", folder / "single.npz", "a single .npy array"
    np.savez(folder / "scalars.npz", x=3.0, y=1)
    yield "npz", folder / "scalars.npz", "'x' is a single value"
    (folder / "flipped.npz").write_bytes(whole.read_bytes().replace(x[5].tobytes(), x[6].tobytes()))
    yield "npz", folder / "flipped.npz", "Bad CRC-32"


def test_broken_files_are_named_with_what_is_wrong(tmp_path):
    for source, path, says in broken_files(tmp_path):
        if source == "parquet":
            pytest.importorskip("pyarrow")
        with pytest.raises(ValueError, match="cannot be read as") as caught:
            load(source, path=path)
        message = str(caught.value)
        assert message.startswith(str(path))
        assert says in message
        assert "write or fetch it again" in message
        assert "allow_pickle" not in message


def test_an_archive_that_claims_more_memory_than_there_is_says_so(tmp_path):
    """A header is 128 bytes whatever it claims: two terabytes in a file of a kilobyte."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (250000000000, 1), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00v\x00" + header)
        archive.writestr("y.npy", b"\x93NUMPY\x01\x00v\x00" + header)
    with pytest.raises(ValueError, match=r"huge\.npz cannot be read as .*'x'.*(more memory|reading array data)"):
        load("npz", path=tmp_path / "huge.npz")


def test_broken_sets_under_a_root_are_named_too(tmp_path):
    stem = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    stem.parent.mkdir()
    pictures = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    content = b"\x00\x00\x08\x03" + np.array(pictures.shape, dtype=">u4").tobytes() + pictures.tobytes()
    labels = b"\x00\x00\x08\x01" + np.array([9], dtype=">u4").tobytes() + bytes(range(9))
    (stem.parent / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    for broken, says in (
        (gzip.compress(content)[:-500], "cannot be read as an idx file: Compressed file ended"),
        (gzip.compress(content[:-500]), "is damaged: 6556 values"),
        (gzip.compress(content[:6]), "is not an idx file"),
        (content, "cannot be read as an idx file: Not a gzipped file"),
    ):
        stem.write_bytes(broken)
        with pytest.raises(ValueError, match=says) as caught:
            load("mnist", data_root=tmp_path)
        assert str(stem) in str(caught.value)
    stem.write_bytes(gzip.compress(content))
    assert load("mnist", data_root=tmp_path).n == 9


def test_a_broken_picture_is_named(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "p.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"p\.png cannot be read as a picture"):
        load("imagefolder", path=tmp_path)


def test_image_folders_with_and_without_splits(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for split in ("train", "test"):
        for label, value in (("cat", 51), ("dog", 102)):
            (tmp_path / split / label / "deep").mkdir(parents=True)
            Image.new("RGBA", (3, 2), (value, 0, 255, 7)).save(tmp_path / split / label / "deep" / "p.png")
    (tmp_path / "train" / "cat" / "readme.txt").write_text("no picture")
    data = load("imagefolder", path=tmp_path, split="test")
    assert data.class_names == ("cat", "dog")
    assert data.image_shape == (3, 2, 3)
    assert torch.equal(data.x.reshape(2, 3, 6)[:, :, 0], torch.tensor([[51, 0, 255], [102, 0, 255]]) / 255)
    assert any("alpha dropped" in note for note in data.notes)
    assert load("imagefolder", path=tmp_path / "test").n == 2
    Image.new("L", (5, 5)).save(tmp_path / "test" / "cat" / "z.png")
    with pytest.raises(ValueError, match="resize="):
        load("imagefolder", path=tmp_path, split="test")
    assert load("imagefolder", path=tmp_path, split="test", resize=(4, 4)).image_shape == (3, 4, 4)
    with pytest.raises(ValueError, match="no folder 'val'"):
        load("imagefolder", path=tmp_path, split="val")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="no pictures in class folders"):
        load("imagefolder", path=tmp_path / "empty")


def torchvision_entries():
    """(name, class, constructor arguments) of every torchvision reader in the registry."""
    for name, source in SOURCES.items():
        for reader in source.readers:
            cells = inspect.getclosurevars(reader).nonlocals
            if "cls" in cells:
                for split, keywords in cells["splits"].items():
                    yield name, split, cells["cls"], keywords


@pytest.mark.parametrize(("name", "split", "cls", "keywords"), list(torchvision_entries()))
def test_every_torchvision_entry_fits_its_class(name, split, cls, keywords):
    """The class exists, takes the arguments, and says by itself that the split's files are not there."""
    module = pytest.importorskip("torchvision.datasets")
    inspect.signature(getattr(module, cls)).bind(root="nowhere", **keywords)
    assert split in SOURCES[name].splits
    choices = {value for value in keywords.values() if isinstance(value, str) and "{" not in value}
    with pytest.raises(Exception) as caught:  # each class has its own way to say so
        getattr(module, cls)(root="nowhere", **({"download": False} if cls == "SEMEION" else {}), **keywords)
    assert not any(f"'{choice}'" in str(caught.value) or "Unknown value" in str(caught.value) for choice in choices)


def test_emnist_is_read_upright_with_its_characters(tmp_path):
    picture = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    for stem, array in (("images-idx3", picture), ("labels-idx1", np.array([38], dtype=np.uint8))):
        header = b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
        with gzip.open(tmp_path / f"emnist-balanced-train-{stem}-ubyte.gz", "wb") as stream:
            stream.write(header + array.tobytes())
    data = load("emnist", data_root=tmp_path)
    assert data.image_shape == (3, 2)
    assert (data.x * 255).round().int().tolist() == [picture[0].T.flatten().tolist()]
    assert data.class_names == ("d",)  # balanced: 10 digits, 26 capitals, then a b d e f g h n q r t
    with pytest.raises(ValueError, match="subset='small'"):
        load("emnist", data_root=tmp_path, subset="small")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "n", "d", "c"),
    [
        ("letter", 20_000, 16, 26),
        ("glass", 214, 9, 6),
        ("sonar", 208, 60, 2),
        ("spam", 4601, 57, 2),
        ("vowel", 990, 10, 11),
    ],
)
def test_tables_have_their_published_sizes(data_root, name, n, d, c):
    data = load(name, data_root=data_root)
    assert (data.n, data.d, data.num_classes) == (n, d, c)


@pytest.mark.data
def test_text_sets_have_their_published_sizes(data_root):
    news = load("ag_news", split="test", data_root=data_root)
    assert (news.n, news.class_names) == (7600, ("World", "Sports", "Business", "Sci/Tech"))
    assert news.class_counts.tolist() == [1900] * 4
    trec = load("trec", data_root=data_root)
    assert dict(zip(trec.class_names, trec.class_counts.tolist(), strict=True)) == {
        "description": 1162, "entity": 1250, "abbreviation": 86, "human": 1223, "location": 835, "number": 896,
    }  # fmt: skip
    assert load("banking77", split="test", data_root=data_root).class_counts.tolist() == [40] * 77
    part = load("trec", max_samples=30, classes=["human", "number"], data_root=data_root)
    assert part.n == 30
    assert set(part.class_names) == {"human", "number"}


class FakeTorchvision:
    """A torchvision set that is on disk once it has been downloaded."""

    def __init__(self, root, train=True, download=False):
        from pathlib import Path

        FakeTorchvision.calls.append((str(root), download))
        if download:
            (Path(root) / "here").write_text("yes")
        if not (Path(root) / "here").is_file():
            raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
        self.targets = [0, 1, 1] if train else [1, 0, 0]
        self.classes = ["apple", "bear"]

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.full((3, 4 + index % 2, 4), 51 * index, dtype=torch.uint8), self.targets[index]


def test_a_torchvision_set_is_looked_for_then_downloaded_then_found(tmp_path, monkeypatch):
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", FakeTorchvision)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("OTDD_DATA", str(tmp_path))
    cache = str(tmp_path / "torch" / "datasets")
    FakeTorchvision.calls = []
    with pytest.raises(FileNotFoundError, match="downloading is off"):
        load("cifar100", download=False)
    assert not any(download for _, download in FakeTorchvision.calls)
    FakeTorchvision.calls = []
    with pytest.raises(ValueError, match=r"resize=\(h, w\)"):
        load("cifar100")
    assert FakeTorchvision.calls[-1] == (cache, True)
    FakeTorchvision.calls = []
    data = load("cifar-100", split="test", resize=(4, 4))
    assert FakeTorchvision.calls[-1] == (cache, False)
    assert data.class_names == ("apple", "bear")
    assert data.y.tolist() == [1, 0, 0]
    assert (data.x[:, 0] * 255).round().tolist() == [0, 51, 102]


def test_torchs_own_folder_reader_agrees_with_ours(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    torchvision = pytest.importorskip("torchvision")
    for label, value in (("cat", 51), ("dog", 102)):
        (tmp_path / label).mkdir()
        Image.new("RGB", (3, 2), (value, 0, 255)).save(tmp_path / label / "p.png")
    ours = load("imagefolder", path=tmp_path)
    theirs = from_torch(torchvision.datasets.ImageFolder(str(tmp_path)))
    assert theirs.fingerprint == ours.fingerprint
    assert theirs.class_names == ours.class_names
