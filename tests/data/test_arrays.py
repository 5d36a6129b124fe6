from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from otdd_flash import from_arrays, from_dataframe, load
from otdd_flash.data.classes import name_classes

X4 = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    "y",
    [
        [3, 7, 3, 9],
        np.array([3, 7, 3, 9], dtype=np.uint8),
        torch.tensor([3.0, 7.0, 3.0, 9.0]),
        ["cat", "dog", "cat", "eel"],
        pd.Series(["cat", "dog", "cat", "eel"], dtype="category"),
        pd.Series([3, 7, 3, 9], dtype="Int64"),
        [(0, 1), (1, 0), (0, 1), (1, 1)],
        [torch.tensor(3), torch.tensor(7), torch.tensor(3), torch.tensor(9)],
        np.eye(5)[[0, 2, 0, 4]],
        np.eye(5, dtype=bool)[[0, 2, 0, 4]].tolist(),
        torch.eye(5, dtype=torch.bfloat16)[[0, 2, 0, 4]],
        np.array([[3], [7], [3], [9]]),
    ],
)
def test_labels_of_any_kind_become_the_same_compact_ids(y):
    data = from_arrays(X4, y)
    assert data.y.tolist() == [0, 1, 0, 2]
    assert data.y.dtype == torch.int64
    assert data.class_counts.tolist() == [2, 1, 1]


def test_class_names_keep_the_original_values():
    assert from_arrays(X4, [3, 7, 3, 9]).class_names == ("3", "7", "9")
    assert from_arrays(X4, [2, 0, 2, 1], class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    assert from_arrays(X4, [3, 7, 3, 9], class_names={3: "x", 7: "y", 9: "z", 11: "w"}).class_names == ("x", "y", "z")
    with pytest.raises(ValueError, match="3 names, indexed by label, but a label is 9"):
        from_arrays(X4, [0, 1, 0, 9], class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match="no name for label 'eel'"):
        from_arrays(X4, ["cat", "dog", "cat", "eel"], class_names={"cat": "Cat", "dog": "Dog"})


@pytest.mark.parametrize(
    "y",
    [
        [0, -1, 1, 0],
        ["a", None, "b", "a"],
        [0.0, float("nan"), 1.0, 0.0],
        np.array([0.0, np.nan, 1.0, 0.0], dtype=np.float16),
        pd.Series([5, None, 6, 5]),
        pd.Series([5, None, 6, 5], dtype="Int64"),
        pd.Series(["u", None, "v", "u"]),
    ],
)
def test_unlabelled_rows_are_dropped_and_counted(y):
    data = from_arrays(X4, y)
    assert data.y.tolist() == [0, 1, 0]
    assert data.ids.tolist() == [0, 2, 3]
    assert data.dropped == {"unlabelled": 1}
    assert data.notes == ("rows left out: unlabelled 1",)
    assert torch.equal(data.x, torch.as_tensor(X4)[[0, 2, 3]])


def test_integer_labels_with_gaps_keep_their_names_and_their_difference(tmp_path):
    """A frame holds integers with a gap as floats, which cannot tell 2**53 + 1 from 2**53; a file has both."""
    for text, names in (("1\n2\n\n1\n2\n", ("1", "2")), ("-3\n\n7\n-3\n7\n", ("-3", "7"))):
        rows = [f"{i},{label}" for i, label in enumerate(text.split("\n")[:-1])]
        (tmp_path / "gap.csv").write_text("x,label\n" + "\n".join(rows))
        data = load(f"csv:{tmp_path}/gap.csv")
        assert data.class_names == names
        assert data.dropped == {"unlabelled": 1}
    (tmp_path / "wide.csv").write_text("x,label\n0,9007199254740993\n1,9007199254740992\n2,\n3,9007199254740994\n")
    assert load(f"csv:{tmp_path}/wide.csv").num_classes == 3
    with pytest.raises(ValueError, match="floats beyond 9007199254740992"):
        from_dataframe(pd.read_csv(tmp_path / "wide.csv"), label="label")


def test_float_labels_beyond_integers_are_refused_and_integers_kept():
    for y in (np.array([1e19, 2e19, 1e19, 2e19]), [1e19, None, 2e19, 1e19], torch.tensor([-(2.0**70), 1, 1, 1])):
        with pytest.raises(ValueError, match=r"floats beyond \d+, .* \(\S+e\+\d+ in row 0\)"):
            from_arrays(X4, y)
    data = from_arrays(X4, [10**19, 2 * 10**19, -5, 10**19])
    assert data.class_names == ("-5", "1" + "0" * 19, "2" + "0" * 19)
    assert data.y.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize(
    "y",
    [
        np.ma.array([5, 7, 6, 5], mask=[0, 1, 0, 0]),
        np.ma.array([5.0, 7.0, 6.0, 5.0], mask=[0, 1, 0, 0]),
        np.ma.array(["5", "7", "6", "5"], mask=[0, 1, 0, 0]),
        list(np.ma.array([5, 7, 6, 5], mask=[0, 1, 0, 0])),
    ],
)
def test_masked_labels_are_unlabelled(y):
    data = from_arrays(X4, y)
    assert data.ids.tolist() == [0, 2, 3]
    assert data.dropped == {"unlabelled": 1}
    assert data.class_names == ("5", "6")


def test_masked_features_and_weights_are_refused_as_nan_is():
    mask = np.zeros((4, 3), dtype=bool)
    mask[2, 1] = True
    masked = np.ma.array(X4, mask=mask)
    for x in (masked, list(masked)):
        with pytest.raises(ValueError, match="1 rows with NaN or infinite features, the first is row 2"):
            from_arrays(x, [0, 1, 0, 1])
    assert from_arrays(masked, [0, 1, None, 1]).x.tolist() == X4[[0, 1, 3]].tolist()
    with pytest.raises(ValueError, match="X has 1 masked values, the first in row 2"):
        from_arrays(masked.astype(np.int64), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="1 are not, the first is nan in row 3"):
        from_arrays(X4, [0, 1, 0, 1], weights=np.ma.array([1, 1, 1, 1], mask=[0, 0, 0, 1]))


def test_class_names_tell_classes_apart():
    for names in (["a", "a", "b"], {0: "a", 1: "a", 2: "b"}):
        with pytest.raises(ValueError, match="gives the name 'a' to several labels"):
            from_arrays(X4, [0, 1, 2, 0], class_names=names)
    for names in ("abc", 3):
        with pytest.raises(ValueError, match="class_names must be a sequence of names or a mapping"):
            from_arrays(X4, [0, 1, 2, 0], class_names=names)
    data = from_arrays(X4, [1, "1", "x", 1])
    assert data.class_names == ("1 (int)", "1 (str)", "x")
    assert data.y.tolist() == [0, 1, 2, 0]
    assert name_classes([0, 1, 2], ["crane", "crane", "maillot"]) == ("crane (0)", "crane (1)", "maillot")
    assert len(set(name_classes([1, "1", "1 (int)"], None))) == 3


def test_sparse_and_byte_labels():
    one_hot = np.eye(3)[[2, 0, 2, 1]]
    sparse = pytest.importorskip("scipy.sparse")
    for y in (sparse.csr_matrix(one_hot), torch.from_numpy(one_hot).to_sparse()):
        assert from_arrays(X4, y).y.tolist() == [2, 0, 2, 1]
    assert from_arrays(X4, np.array(["é", "e", "é", "e"]).astype(object)).class_names == ("e", "é")
    assert from_arrays(X4, np.array(["é".encode(), b"e"] * 2)).class_names == ("e", "é")
    with pytest.raises(ValueError, match="y holds bytes that are not UTF-8"):
        from_arrays(X4, np.array([b"\xff", b"a"] * 2))


def test_plus_minus_labels_are_said_to_be_half_unlabelled():
    with pytest.warns(UserWarning, match="-1 means unlabelled"):
        assert from_arrays(X4, [-1, 1, 1, -1]).n == 2


def test_targets_and_multi_labels_are_refused_with_advice():
    """C36."""
    for y in ([0.5, 1.0, 2.0, 3.25], [0.5, None, 1, 2], torch.tensor([0.1, 0.2, 0.3, 0.4])):
        with pytest.raises(ValueError, match=r"real-valued targets.*bin the target"):
            from_arrays(X4, y)
    with pytest.raises(ValueError, match=r"multi-label rows \(row 1 has 2 labels\)"):
        from_arrays(X4, [[1, 0], [1, 1], [0, 1], [1, 0]])
    with pytest.raises(ValueError, match="class probabilities"):
        from_arrays(X4, [[0.9, 0.1], [0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="looks like a real-valued target"):
        from_arrays(np.zeros((50, 1)), np.arange(50.0))
    with pytest.raises(ValueError, match=r"rows of different lengths \(several labels a sample\?\)"):
        from_arrays(X4, [[0], [0, 1], [1], [2]])
    for y in (np.array(3), torch.tensor(3)):
        with pytest.raises(ValueError, match=r"y must be \(n,\) labels or \(n, c\) one-hot rows, got shape \(\)"):
            from_arrays(X4, y)
    for y in ("abcd", {0, 1, 2, 3}, 4):
        with pytest.raises(ValueError, match="y must be an ordered sequence"):
            from_arrays(X4, y)
    with pytest.raises(ValueError, match="cannot be class labels"):
        from_arrays(X4, [{1}, {2}, {1}, {2}])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.bfloat16])
def test_features_become_float32_of_the_same_value(dtype):
    """C09, C15."""
    x = (torch.arange(12).reshape(4, 3) % 2).to(dtype)
    data = from_arrays(x, [0, 1, 0, 1])
    assert data.x.dtype == torch.float32
    assert torch.equal(data.x, x.float())


def test_wide_floats_and_large_integers_stay_exact():
    assert from_arrays(X4, [0, 1, 0, 1]).x.dtype == torch.float64
    big = np.array([[2**24 + 1], [1]])
    assert from_arrays(big, [0, 1]).x.flatten().tolist() == [2**24 + 1, 1]
    assert from_arrays(np.array([[2**40], [1]], dtype=np.uint64), [0, 1]).x[0, 0] == 2**40


def test_strides_byte_order_read_only_memory_and_frames_do_not_matter():
    base = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    y = [0, 1, 2, 0, 1, 2]
    frozen = base.copy()
    frozen.flags.writeable = False
    for x in (
        np.asfortranarray(base), base[::-1].copy()[::-1], base.astype(">f4"), frozen, pd.DataFrame(base), base.tolist(),
        torch.from_numpy(base.T.copy()).T, list(torch.from_numpy(base)), base.astype(object),
        torch.from_numpy(base).to_sparse(),
    ):  # fmt: skip
        assert np.array_equal(from_arrays(x, y).x.numpy(), base)


def test_a_gradient_flows_back_in_the_inputs_dtype():
    x = torch.ones(4, 2, dtype=torch.float16, requires_grad=True)
    from_arrays(x, [0, 1, 0, -1]).x.sum().backward()
    assert x.grad.dtype == torch.float16
    assert x.grad.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_text_ragged_and_complex_features_are_refused():
    with pytest.raises(ValueError, match=r"columns \['city'\] are not numeric"):
        from_arrays(pd.DataFrame({"a": [1, 2], "city": ["x", "y"]}), [0, 1])
    with pytest.raises(ValueError, match="embedder"):
        from_arrays(np.array([["a"], ["b"]]), [0, 1])
    with pytest.raises(ValueError, match="different lengths"):
        from_arrays([[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(ValueError, match="complex"):
        from_arrays(np.ones((2, 2), dtype=complex), [0, 1])
    for x in ([torch.ones(2), torch.ones(3)], [torch.ones(2), [1.0, 2.0]]):
        with pytest.raises(ValueError, match="X has rows of different lengths or kinds"):
            from_arrays(x, [0, 1])
    with pytest.raises(ValueError, match="X holds values that are not numbers"):
        from_arrays([[10**400], [1]], [0, 1])


@pytest.mark.parametrize("shape", [(-1, -3), 3, "ab", (3,), (1.0, 3), (1, 1, 1, 3)])
def test_image_shapes_that_are_none_are_refused(shape):
    with pytest.raises(ValueError, match=r"image_shape must be \(h, w\), \(c, h, w\) or \(h, w, c\)"):
        from_arrays(X4, [0, 1, 0, 1], image_shape=shape)


def test_nan_and_infinity_are_refused_with_count_and_first_row():
    """C33."""
    x = np.ones((5, 2))
    x[2, 1], x[4, 0] = np.nan, np.inf
    with pytest.raises(ValueError, match="2 rows with NaN or infinite features, the first is row 2"):
        from_arrays(x, [0, 1, 0, 1, 0])
    assert from_arrays(x, [0, 1, None, 1, None]).n == 3
    assert from_arrays(np.full((2, 2), 3e38, dtype=np.float32), [0, 1]).n == 2  # the sum overflows, the values do not


def test_empty_and_mismatched_input_is_refused():
    with pytest.raises(ValueError, match="zero rows"):
        from_arrays(np.zeros((0, 3)), [])
    with pytest.raises(ValueError, match=r"X has shape \(4, 3\), y has 3 labels"):
        from_arrays(X4, [0, 1, 2])
    with pytest.raises(ValueError, match=r"reshape\(-1, 1\)"):
        from_arrays(np.zeros(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"no sample is left of 4; dropped: \{'unlabelled': 4\}"):
        from_arrays(X4, [-1, -1, None, -1])
    assert from_arrays(np.zeros((3, 2)), [0, 0, 0]).num_classes == 1  # all rows identical is allowed


def test_weights_are_normalised_in_float64_with_a_note():
    """C15."""
    data = from_arrays(X4, [0, 1, 0, 1], weights=[1, 0, 2, 1])
    assert data.weights.dtype == torch.float64
    assert data.weights.tolist() == [0.25, 0.5, 0.25]
    assert data.dropped == {"zero weight": 1}
    assert data.ids.tolist() == [0, 2, 3]
    assert any("summed to 4" in note for note in data.notes)
    quiet = from_arrays(X4, [0, 1, 0, 1], weights=torch.full((4,), 0.25))
    assert not any("summed" in note for note in quiet.notes)
    lost = from_arrays(X4, [0, None, 0, 1], weights=[1, 5, 2, 1])
    assert lost.weights.tolist() == [0.25, 0.5, 0.25]


def test_weights_of_any_scale_are_normalised_and_underflow_is_counted():
    y = [0, 1, 0, 1]
    for scale in (1e308, 5e-324, 1e-310):
        data = from_arrays(X4, y, weights=[scale] * 4)
        assert data.weights.tolist() == [0.25] * 4
    assert any("more than float64 holds" in note for note in from_arrays(X4, y, weights=[1e308] * 4).notes)
    tiny = from_arrays(X4, y, weights=[1e308, 1e-300, 1e308, 1e308])
    assert tiny.dropped == {"weight underflows": 1}
    assert tiny.ids.tolist() == [0, 2, 3]
    np.testing.assert_allclose(tiny.weights, [1 / 3] * 3, rtol=1e-15)
    apart = from_arrays(X4, [None, 1, 0, 1], weights=[1e308, 1e-300, 2e-300, 1e-300])  # the large one is unlabelled
    assert apart.weights.tolist() == [0.25, 0.5, 0.25]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 3, r"shape \(3,\), but there are 4 samples"),
        ([[1.0]] * 4, r"shape \(4, 1\)"),
        ([1, -0.5, 1, -2], "2 are not, the first is -0.5 in row 1"),
        ([1, float("nan"), 1, 1], "1 are not, the first is nan in row 1"),
        ([0, 0, 0, 0], "all zero"),
        (["a", "b", "c", "d"], "weights must be 4 numbers"),
        ([10**400, 1, 1, 1], "weights must be 4 numbers"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    """C15."""
    with pytest.raises(ValueError, match=message):
        from_arrays(X4, [0, 1, 0, 1], weights=weights)


def test_duplicated_rows_have_the_weight_of_one_row_weighted_twice():
    twice = from_arrays(np.repeat(X4, 2, axis=0), np.repeat([0, 1, 0, 1], 2))
    weighted = from_arrays(X4, [0, 1, 0, 1], weights=[2, 2, 2, 2])
    assert torch.equal(twice.normalised_weights.reshape(4, 2).sum(1), weighted.normalised_weights)


def test_small_classes_are_dropped_only_when_asked():
    """C02."""
    y = [1, 1, 2, 2, 5]
    x = np.eye(5)
    assert from_arrays(x, y).num_classes == 3
    with pytest.warns(UserWarning, match=r"min_class_size=2 drops 1 classes with 1 samples: \['5'\]"):
        data = from_arrays(x, y, min_class_size=2)
    assert data.class_names == ("1", "2")
    assert data.dropped == {"class under min_class_size": 1}
    assert data.notes == ("rows left out: class under min_class_size 1",)


def test_labels_that_cannot_reach_the_features_device_are_refused():
    """C34."""
    with pytest.raises(ValueError, match="features are on cpu and labels or weights on meta"):
        from_arrays(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64, device="meta"))


PICTURES = np.random.default_rng(1).integers(0, 256, size=(6, 5, 4, 3), dtype=np.uint8)
Y6 = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    "x",
    [
        PICTURES,
        PICTURES.transpose(0, 3, 1, 2),
        PICTURES.astype(np.int64),
        torch.from_numpy(PICTURES.transpose(0, 3, 1, 2).copy()).float() / 255,
        torch.from_numpy(PICTURES).float().div(255),
        (PICTURES / 255).astype(np.float32),
        np.concatenate([PICTURES, PICTURES[..., :1]], axis=3),
    ],
)
def test_pictures_in_every_form_are_the_same_rows(x):
    data = from_arrays(x, Y6)
    expected = PICTURES.transpose(0, 3, 1, 2).reshape(6, -1) / 255
    assert data.image_shape == (3, 5, 4)
    assert data.levels == 255
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-7)
    assert any("alpha" in note for note in data.notes) == (x.shape[-1] == 4 and x.shape[1] == 5)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_low_pictures_with_channels_last_keep_every_value(rows, channels):
    x = np.random.default_rng(2).integers(0, 256, size=(5, rows, 9, channels), dtype=np.uint8)
    data = from_arrays(x, [0, 1, 0, 1, 0])
    assert data.image_shape == ((channels, rows, 9) if channels == 3 else (rows, 9))
    expected = x.transpose(0, 3, 1, 2).reshape(5, -1).astype(np.float32) / 255
    assert np.array_equal(data.x.numpy(), expected)
    assert data.notes == ()
    first = from_arrays(x.transpose(0, 3, 2, 1), [0, 1, 0, 1, 0])  # (n, c, 9, rows): narrow, channels first
    assert np.array_equal(first.x.numpy(), (x / 255).astype(np.float32).transpose(0, 3, 2, 1).reshape(5, -1))


@pytest.mark.parametrize(("first", "last"), [(4, 4), (4, 2), (2, 2)])
def test_two_possible_alpha_axes_are_refused_and_the_advice_settles_them(first, last):
    x = np.random.default_rng(2).integers(0, 256, size=(3, first, 9, last), dtype=np.uint8)
    with pytest.raises(ValueError, match=rf"X\[\.\.\., :{last - 1}\] where channels are last"):
        from_arrays(x, [0, 1, 0])
    colours_last, colours_first = from_arrays(x[..., : last - 1], [0, 1, 0]), from_arrays(x[:, : first - 1], [0, 1, 0])
    assert colours_last.image_shape[-2:] == (first, 9)
    assert colours_first.image_shape[-2:] == (9, last)


def test_pictures_of_a_tiny_scale_are_not_rounded_to_zero():
    levels = np.random.default_rng(0).integers(0, 255, (10, 4, 5))
    for dtype in (np.float32, np.float64):
        for scale in (1e-7, 1e-17, -1e-9):
            x = (levels / 255 * scale).astype(dtype)
            data = from_arrays(x, [0] * 10)
            assert data.levels is None
            assert np.array_equal(data.x.numpy(), x.reshape(10, -1))
    mixed = (levels / 255).astype(np.float32)
    mixed[9, 0, 0] = 1e-8
    assert from_arrays(mixed, [0] * 10).x[9, 0] == np.float32(1e-8)
    assert from_arrays(np.zeros((2, 4, 5)), [0, 1]).levels == 255


def test_grey_pictures_flattened_rows_and_deeper_ones():
    grey = PICTURES[..., 0]
    data = from_arrays(grey, Y6)
    assert data.image_shape == (5, 4)
    flat = from_arrays(grey.reshape(6, -1), Y6, image_shape=(5, 4))
    assert flat.fingerprint == data.fingerprint
    assert flat.image_shape == (5, 4)
    assert from_arrays(grey.reshape(6, -1), Y6).x.max() > 1  # plain integer features keep their values
    deep = from_arrays(grey.astype(np.uint16) * 257, Y6)
    np.testing.assert_allclose(deep.x.numpy(), grey.reshape(6, -1) / 255, atol=1e-6)
    signed = from_arrays(grey / 127.5 - 1, Y6)
    assert signed.levels is None
    assert any("kept in their range" in note for note in signed.notes)
    with pytest.raises(ValueError, match="does not fit"):
        from_arrays(grey.reshape(6, -1), Y6, image_shape=(5, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_eight_bit_grid_is_detected_not_assumed(dtype):
    x = (np.arange(256).reshape(32, 8) / 255).astype(dtype)
    y = np.arange(32) % 2
    assert from_arrays(x, y).levels == 255
    for row, column in ((0, 3), (31, 7), (17, 0)):
        off = x.copy()
        off[row, column] = 0.5003
        assert from_arrays(off, y).levels is None
    assert from_arrays(x + 1, y).levels is None
    assert from_arrays(x - 1, y).levels is None


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_features_in_a_frame_of_any_library(library):
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": [0.5, None, 2.5, 3.5]}).convert_dtypes()
    if library == "polars":
        frame = pytest.importorskip("polars").from_pandas(frame)
    with pytest.raises(ValueError, match=r"column 'b' has 1 missing values .*, the first in row 1"):
        from_arrays(frame, [0, 1, 0, 1])
    assert from_arrays(frame, [0, None, 0, 1]).x.tolist() == [[1, 0.5], [3, 2.5], [4, 3.5]]
    assert from_arrays(frame[["a"]], frame["b"] > 1, class_names=["low", "high"]).class_counts.tolist() == [1, 2]
    assert from_arrays(X4, frame["a"]).class_names == ("1", "2", "3", "4")


def test_frames_of_odd_columns():
    swapped = pd.DataFrame(X4.astype(">f8"))
    assert from_arrays(swapped, [0, 1, 0, 1]).x.tolist() == X4.tolist()
    vectors = pd.DataFrame({"v": [[1, 2], [3, 4]], "a": [5.5, 6.5]})
    assert from_arrays(vectors, [0, 1]).x.tolist() == [[1, 2, 5.5], [3, 4, 6.5]]
    few = pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 3]), "b": [1.0, 2.0, 3.0]})
    assert from_arrays(few, [0, 1, 0]).x.tolist() == [[0, 1], [0, 2], [3, 3]]
    with pytest.raises(ValueError, match=r"Conversion failed for column a with type object; bring the column to one"):
        from_arrays(pd.DataFrame({"a": [1, "x"], "b": [0, 1]}), [0, 1])


class Watched(np.ndarray):
    """Remembers the rows that were read."""

    read: ClassVar[list] = []

    def __getitem__(self, key):
        Watched.read.append(key)
        return super().__getitem__(key)


def test_a_draw_reads_its_rows_alone(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(400.0).reshape(100, 4))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels = np.arange(100) % 3
    part = from_arrays(mapped, labels, max_samples=7, seed=3, classes=[0, 2])
    assert (
        part.ids.tolist() == from_arrays(mapped.copy(), labels, max_samples=7, seed=3, classes=["0", "2"]).ids.tolist()
    )
    assert part.x.tolist() == mapped[part.ids.numpy()].tolist()
    Watched.read.clear()
    from_arrays(mapped.view(Watched), labels, max_samples=7, seed=3, classes=[0, 2])
    assert [list(rows) for rows in Watched.read] == [part.ids.tolist()]


def test_sparse_features_are_made_dense_with_their_size_and_a_narrower_way():
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random(300, 40, density=0.1, random_state=0, format="coo")
    tensor = torch.from_numpy(x.toarray()).to_sparse_csr()
    for given in (x, x.tocsc(), tensor, tensor.to_sparse_coo()):
        data = from_arrays(given, np.arange(300) % 2)
        assert np.array_equal(data.x.numpy(), x.toarray())
        assert (
            "sparse X (0.1 of its values are not zero) made dense: 96 kB; scikit-learn's TruncatedSVD" in data.notes[0]
        )
        part = from_arrays(given, np.arange(300) % 2, max_samples=9)
        assert np.array_equal(part.x.numpy(), x.toarray()[part.ids.numpy()])


def test_sparse_features_beyond_memory_are_refused_before_they_are_dense():
    sparse = pytest.importorskip("scipy.sparse")
    huge = sparse.csr_matrix((500_000, 2_000_000), dtype=np.float32)
    with pytest.raises(ValueError, match=r"X is sparse: 500000 of its rows made dense.* take 4 TB.*TruncatedSVD"):
        from_arrays(huge, np.zeros(500_000, dtype=int))
    assert from_arrays(huge, np.zeros(500_000, dtype=int), max_samples=2).d == 2_000_000


def test_quantised_nested_and_empty_tensors():
    x = torch.tensor([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])
    quantised = torch.quantize_per_tensor(x, 0.5, 0, torch.quint8)
    assert from_arrays(quantised, [0, 1, 0]).x.tolist() == x.tolist()
    assert from_arrays(x, torch.quantize_per_tensor(x[:, 0], 1, 0, torch.quint8)).class_names == ("0", "1", "2")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(ValueError, match="X is a nested tensor"):
        from_arrays(nested, [0, 1])
    with pytest.raises(ValueError, match="y is a nested tensor"):
        from_arrays(x[:2], nested)
    with pytest.raises(ValueError, match="X is a tensor on the device meta"):
        from_arrays(x.to("meta"), [0, 1, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": None}, "seed must be an integer, got None"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"max_samples": 2.0}, "max_samples must be a positive integer or None, got 2.0"),
        ({"classes": 7}, "classes must be a list of labels or names to keep, or None for all, got 7"),
        ({"classes": [[0], [1]]}, "classes must be a list of labels"),
        ({"classes": []}, "classes is empty"),
        ({"classes": [7]}, r"classes=\[7\] are not in arrays"),
    ],
)
def test_arguments_of_a_draw_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(X4, [0, 1, 0, 1], **{"max_samples": 2, **options})
    if options != {"classes": [7]}:
        frame = pd.DataFrame(X4).assign(label=[0, 1, 0, 1])
        with pytest.raises(ValueError, match=message):
            from_dataframe(frame, label="label", **{"max_samples": 2, **options})


def test_rows_are_named_by_numbers_or_by_a_mask() -> None:
    data = from_arrays(torch.arange(12.0).reshape(6, 2), [0, 0, 1, 1, 2, 2])
    assert torch.equal(data.subset(data.y == 2).x, data.x[4:])
    assert torch.equal(data.subset([5, 0]).x, data.x[[5, 0]])
    for wrong in ([0.9, 1.9], [], [6], [-7], torch.ones(5, dtype=torch.bool), torch.zeros(6, dtype=torch.bool)):
        with pytest.raises(ValueError, match="row"):
            data.subset(wrong)
