"""One decoder behind every door: the same file is the same picture, and a bad one is one clear error."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from otdd_flash import from_huggingface, from_torch, load
from otdd_flash.data.sizes import PictureSize

datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")
Image = pytest.importorskip("PIL.Image")

RGB = np.random.default_rng(3).integers(0, 256, size=(16, 24, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
ENCODED = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})


def encoded(form="PNG", orientation=None, picture=RGB, **options):
    image, stream = Image.fromarray(picture), io.BytesIO()
    if orientation is not None:
        options["exif"] = image.getexif()
        options["exif"][0x0112] = orientation
    image.save(stream, form, **options)
    return stream.getvalue()


class Files(Dataset):
    """Opens its files when they are asked for, as torchvision's folders do."""

    def __init__(self, folder, names):
        self.paths, self.targets = [folder / name for name in names], [0, 1] * (len(names) // 2)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        if not path.exists():
            return None, self.targets[index]
        with Image.open(path) as picture:
            return picture.convert("RGB"), self.targets[index]


class Stream(IterableDataset):
    """The same as a stream."""

    def __init__(self, files):
        self.files = files

    def __iter__(self):
        return (self.files[i] for i in range(len(self.files)))


def names_of(contents):
    return [f"{i}.png" for i in range(len(contents))]


def imagefolder(contents, folder):
    for i, (name, content) in enumerate(zip(names_of(contents), contents, strict=True)):
        (folder / "set" / str(i % 2)).mkdir(parents=True, exist_ok=True)
        path = folder / "set" / str(i % 2) / name
        if content is None:
            path.symlink_to(folder / "nowhere.png")
        else:
            path.write_bytes(content)
    return load("imagefolder", path=folder / "set")


def table(contents):
    """Rows as Hugging Face writes them; a missing picture is no mapping at all."""
    pictures = [None if content is None else {"bytes": content, "path": None} for content in contents]
    return {"image": pictures, "label": [i % 2 for i in range(len(contents))]}


def parquet_bytes(contents, folder):
    parquet.write_table(pyarrow.table({**table(contents), "image": contents}), folder / "set.parquet")
    return load("parquet", path=folder / "set.parquet")


def parquet_mappings(contents, folder):
    parquet.write_table(pyarrow.table(table(contents)), folder / "set.parquet")
    return load("parquet", path=folder / "set.parquet")


def parquet_paths(contents, folder):
    written(contents, folder)
    rows = {**table(contents), "image": [{"bytes": None, "path": name} for name in names_of(contents)]}
    parquet.write_table(pyarrow.table(rows), folder / "set.parquet")
    return load("parquet", path=folder / "set.parquet")


def hugging_face(contents, folder):
    ds = datasets.Dataset.from_dict(table(contents), ENCODED)
    return from_huggingface(ds.cast_column("image", datasets.Image()), name="set")


def hugging_face_encoded(contents, folder):
    return from_huggingface(datasets.Dataset.from_dict(table(contents), ENCODED), image="image", name="set")


def hugging_face_stream(contents, folder):
    ds = datasets.Dataset.from_dict(table(contents), ENCODED).cast_column("image", datasets.Image())
    return from_huggingface(ds.to_iterable_dataset(), name="set")


def written(contents, folder):
    for name, content in zip(names_of(contents), contents, strict=True):
        if content is not None:
            (folder / name).write_bytes(content)
    return Files(folder, names_of(contents))


def torch_files(contents, folder):
    return from_torch(written(contents, folder), name="set")


def torch_stream(contents, folder):
    return from_torch(Stream(written(contents, folder)), name="set")


DOORS = [imagefolder, parquet_bytes, parquet_mappings, parquet_paths]
DOORS += [hugging_face, hugging_face_encoded, hugging_face_stream, torch_files, torch_stream]
every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)


@every_door
@pytest.mark.parametrize("orientation", [6, 3])
def test_a_picture_is_turned_by_every_door_alike(door, orientation, tmp_path):
    upright = encoded("PNG", None, np.asarray(Image.open(io.BytesIO(encoded("JPEG", quality=95)))))
    turned = {6: 1, 3: 2}[orientation]  # quarter turns that the camera was held by
    sensor = encoded("PNG", orientation, np.rot90(np.asarray(Image.open(io.BytesIO(upright))), turned).copy())
    data = door([upright, sensor], tmp_path)
    assert data.image_shape == (3, 128, 192)
    assert torch.equal(data.x[0], data.x[1])


def test_the_jpeg_of_a_camera_is_the_same_through_every_door(tmp_path):
    jpeg = encoded("JPEG", 8)
    rows = []
    for door in DOORS:
        (tmp_path / door.__name__).mkdir()
        rows.append(door([jpeg, jpeg], tmp_path / door.__name__))
    assert {row.image_shape for row in rows} == {(3, 192, 128)}
    assert all(torch.equal(row.x, rows[0].x) for row in rows)
    assert all(any("EXIF orientation" in note for note in row.notes) for row in rows)


def png_that_claims(height, width):
    """A PNG whose header alone is right."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def flipped():
    content = bytearray(encoded())
    content[60] ^= 0xFF
    return bytes(content)


BAD = {
    "garbage": (b"no picture at all", "damaged or of another format than .*PNG"),
    "truncated": (encoded()[:200], "replace it or leave it out"),
    "avif": (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200), "replace it or leave it out"),
    "flipped": (flipped(), "replace it or leave it out"),
    "empty": (b"", "replace it or leave it out"),
    "huge": (png_that_claims(20_000, 20_000), r"400000000 pixels.*make it smaller"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "another format than"),
    "missing": (None, None),
}


@every_door
@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_picture_is_one_error_that_names_set_and_row_or_file(door, kind, tmp_path, monkeypatch):
    eps = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(eps, "Ghostscript", lambda *a, **k: pytest.fail("Ghostscript was called"))
    content, says = BAD[kind]
    if door is imagefolder and content is None:
        assert imagefolder([encoded(), encoded(), None, encoded()], tmp_path).dropped == {"broken link": 1}
        return
    if kind == "postscript" and door in (torch_files, torch_stream):
        pytest.skip("opened by the data set itself")
    contents = [encoded(), encoded(), encoded(), content, encoded(), encoded()]
    with pytest.raises(ValueError, match="cannot be read") as caught:
        door(contents, tmp_path)
    message = str(caught.value)
    where = str(Path("set") / "1" / "3.png") if door is imagefolder else "row 3"
    assert message.startswith("set: ")
    assert where in message
    assert "object at 0x" not in message
    assert "\n" not in message
    if content is None:
        says = "missing" if door is not parquet_paths else "there is no file"
    assert re.search(says, message)


def test_paths_of_a_table_are_taken_from_its_folder_alone(tmp_path):
    inside, outside = tmp_path / "table", tmp_path / "other"
    for folder in (inside, outside):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "0.png").write_bytes(encoded())
    for path, fine in (("deep/0.png", True), (str(inside / "deep" / "0.png"), True), ("../table/deep/0.png", True),
                       ("../other/deep/0.png", False), (str(outside / "deep" / "0.png"), False)):  # fmt: skip
        for column in ([{"bytes": None, "path": path}] * 2, [path] * 2):
            parquet.write_table(pyarrow.table({"picture": column, "label": [0, 1]}), inside / "t.parquet")
            if fine:
                assert load("parquet", path=inside / "t.parquet", image="picture").n == 2
            else:
                with pytest.raises(ValueError, match=r"t: row 0 names the picture .* not under .*picture_root="):
                    load("parquet", path=inside / "t.parquet", image="picture")
                root = {"picture_root": tmp_path if path.startswith("/") else inside / ".." / "table"}
                if path.startswith("/"):
                    assert load("parquet", path=inside / "t.parquet", image="picture", **root).n == 2
    parquet.write_table(pyarrow.table({"picture": ["other/deep/0.png"] * 2, "label": [0, 1]}), inside / "t.parquet")
    assert load("parquet", path=inside / "t.parquet", image="picture", picture_root=str(tmp_path)).n == 2


def test_numbers_are_no_pictures():
    ds = datasets.Dataset.from_dict({"picture": [1, 2], "label": [0, 1]})
    with pytest.raises(ValueError, match=r"set: row 0 cannot be read as a picture: .*got shape"):
        from_huggingface(ds, image="picture", name="set")


def test_the_mode_that_a_hugging_face_set_names_is_kept():
    ds = datasets.Dataset.from_dict(table([encoded("JPEG", 6)] * 2), ENCODED)
    grey = from_huggingface(ds.cast_column("image", datasets.Image(mode="L")))
    assert grey.image_shape == (192, 128)
    streamed = ds.cast_column("image", datasets.Image(mode="L")).to_iterable_dataset()
    assert torch.equal(from_huggingface(streamed).x, grey.x)


def test_the_first_frame_of_several_is_taken_and_said(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        frames = [Image.fromarray(RGB[:4, :4, 0] * 0 + value) for value in (51, 102)]
        frames[0].save(tmp_path / label / "0.gif", save_all=True, append_images=frames[1:])
    data = load("imagefolder", path=tmp_path)
    assert (data.x * 255).round().unique().tolist() == [51]
    assert any("first frame" in note for note in data.notes)


def test_a_missing_text_or_vector_is_named_by_row():
    with pytest.raises(ValueError, match="set: 1 texts are missing, the first in row 1"):
        from_torch([("a", 0), (None, 1), ("c", 0)], name="set")
    with pytest.raises(ValueError, match="set: row 1 has no features"):
        from_torch([(torch.ones(3), 0), (None, 1)], name="set")


def test_pictures_are_resized_one_at_a_time(monkeypatch):
    """Photographs may take more memory than there is before they are resized."""
    from otdd_flash.data import pictures

    seen = []
    monkeypatch.setattr(pictures, "picture_matrix", lambda stacked, notes: stacked)
    monkeypatch.setattr(pictures, "decode", lambda item: seen.append(item) or (torch.zeros(1, 8, 8), ()))
    monkeypatch.setattr(PictureSize, "__call__", lambda self, picture: seen.append("resized") or picture)
    pictures.stack_pictures(["a", "b"], PictureSize(4, 4))
    assert seen == ["a", "resized", "b", "resized"]
