"""Which files of a picture folder are read, which folders are the classes, and what is said of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from otdd_flash import load

Image = pytest.importorskip("PIL.Image")


def picture(path, value=51, form=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (value, 0, 255)).save(path, form, **options)


def classes_of(root, names, folder="", count=1):
    for name in names:
        for i in range(count):
            picture(root / folder / name / f"{i}.png", 10 * i)


def test_hidden_and_system_files_are_left_out_and_counted(tmp_path):
    classes_of(tmp_path, ("cat", "dog"), count=2)
    for hidden in ("cat/._0.png", "cat/.ipynb_checkpoints/0.png", "dog/@eaDir/0.png/SYNOPHOTO.png", ".git/x/0.png",
                   "__MACOSX/cat/._0.png", "cat/__MACOSX/1.png", ".hidden.png"):  # fmt: skip
        picture(tmp_path / hidden)
    for system in ("cat/Thumbs.db", "dog/desktop.ini", "desktop.ini", ".DS_Store"):
        (tmp_path / system).write_bytes(b"no picture")
    (tmp_path / "cat" / "readme.txt").write_text("no picture")
    picture(tmp_path / "stray.png")
    data = load("imagefolder", path=tmp_path)
    assert (data.n, data.class_names) == (4, ("cat", "dog"))
    assert data.dropped == {
        "hidden or system file": 11,
        "no picture file": 1,
        "picture outside the class folders": 1,
    }
    assert any("1 .txt" in note and "11 hidden or system file" in note for note in data.notes)


@pytest.mark.parametrize("form", ["jfif", "jpe", "JPEG", "apng", "pbm", "tif", "webp", "avif", "jp2", "bmp", "gif"])
def test_every_ending_of_a_picture_is_read(tmp_path, form):
    from PIL import features

    if (form in ("avif", "webp") and not features.check(form)) or (form == "jp2" and not features.check("jpg_2000")):
        pytest.skip(f"this Pillow does not read {form}")
    kinds = {"jfif": "JPEG", "jpe": "JPEG", "apng": "PNG", "pbm": "PPM", "tif": "TIFF", "jp2": "JPEG2000"}
    picture(tmp_path / "cat" / f"a.{form}", form=kinds.get(form, form.upper()))
    classes_of(tmp_path, ("dog",))
    data = load("imagefolder", path=tmp_path)
    assert (data.n, data.dropped) == (2, {})


def test_class_folders_without_a_picture_are_named_with_what_they_hold(tmp_path):
    classes_of(tmp_path, ("cat",))
    (tmp_path / "empty").mkdir()
    (tmp_path / "phone").mkdir()
    for i in range(3):
        (tmp_path / "phone" / f"{i}.heic").write_bytes(b"some")
    with pytest.warns(UserWarning, match=r"2 class folders .* 'empty' \(no file\), 'phone' \(3 \.heic\)"):
        data = load("imagefolder", path=tmp_path)
    assert any("'phone' (3 .heic)" in note for note in data.notes)
    assert data.dropped == {"no picture file": 3}
    (tmp_path / "cat" / "0.png").unlink()
    with pytest.raises(ValueError, match=r"no pictures in class folders .*'cat' \(no file\).*'phone' \(3 \.heic\)"):
        load("imagefolder", path=tmp_path)


def test_links_are_followed_and_loops_are_not(tmp_path):
    classes_of(tmp_path / "elsewhere", ("deep",), count=3)
    root = tmp_path / "root"
    classes_of(root, ("cat",))
    (root / "dog").symlink_to(tmp_path / "elsewhere" / "deep")
    (root / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (root / "cat" / "loop").symlink_to(root)
    (root / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (root / "cat" / "self.png").symlink_to(root / "cat" / "self.png")
    data = load("imagefolder", path=root)
    assert dict(zip(data.class_names, data.class_counts.tolist(), strict=True)) == {"cat": 7, "dog": 3}
    assert data.dropped == {"link to a folder above it": 1, "broken link": 2}


def test_a_class_called_train_is_a_class(tmp_path):
    classes_of(tmp_path, ("bus", "car", "train"), count=2)
    assert load("imagefolder", path=tmp_path).class_counts.tolist() == [2, 2, 2]
    assert load("imagefolder", path=tmp_path, split="all").class_names == ("bus", "car", "train")
    classes_of(tmp_path, ("test",), count=2)  # a class as well: it holds pictures, not class folders
    assert load("imagefolder", path=tmp_path).class_names == ("bus", "car", "test", "train")
    picture(tmp_path / "train" / "steam" / "0.png")
    assert load("imagefolder", path=tmp_path).class_counts.tolist() == [2, 2, 2, 3]


def test_an_empty_class_called_train_is_said_to_be_empty(tmp_path):
    classes_of(tmp_path, ("bus", "car"))
    (tmp_path / "train").mkdir()
    with pytest.warns(UserWarning, match=r"'train' \(no file\)"):
        assert load("imagefolder", path=tmp_path).class_names == ("bus", "car")


def test_what_could_be_a_split_or_a_class_is_refused_with_the_ways_out(tmp_path):
    classes_of(tmp_path, ("bus", "car"))
    classes_of(tmp_path, ("diesel", "steam"), "train")
    with pytest.raises(ValueError, match=r"is 'train' a split or a class\?.*\['bus', 'car'\].*split='all'.*path="):
        load("imagefolder", path=tmp_path)
    assert load("imagefolder", path=tmp_path, split="all").class_names == ("bus", "car", "train")
    assert load("imagefolder", path=tmp_path / "train").class_names == ("diesel", "steam")
    classes_of(tmp_path, ("diesel", "steam"), "test")  # beside a test split it is the training split
    assert load("imagefolder", path=tmp_path).class_names == ("diesel", "steam")
    assert load("imagefolder", path=tmp_path, split="test").class_names == ("diesel", "steam")


def test_splits_without_class_folders_are_no_classes(tmp_path):
    classes_of(tmp_path, ("test", "train"))
    with pytest.raises(ValueError, match=r"pictures, but no class folders.*split='all'"):
        load("imagefolder", path=tmp_path)
    assert load("imagefolder", path=tmp_path, split="all").class_names == ("test", "train")


def test_splits_are_found_among_splits_alone(tmp_path):
    classes_of(tmp_path, ("cat", "dog"), "val")
    classes_of(tmp_path, ("cat", "dog"), "test")
    with pytest.raises(ValueError, match=r"no folder 'train' for that split; it has \['test', 'val'\]"):
        load("imagefolder", path=tmp_path)
    assert load("imagefolder", path=tmp_path, split="val").n == 2
    with pytest.warns(UserWarning, match="look like splits"):
        assert load("imagefolder", path=tmp_path, split="all").class_names == ("test", "val")
    classes_of(tmp_path, ("cat", "dog", "eel"), "train", count=2)
    assert load("imagefolder", path=tmp_path).class_counts.tolist() == [2, 2, 2]


def test_a_link_to_one_folder_gives_the_same_pictures_by_both_names(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4):
        (tmp_path / "a" / "x").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(tmp_path / "a" / "x" / f"{i}.png")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    data = load("imagefolder", path=tmp_path)
    assert data.x[:4].equal(data.x[4:])
