"""Tables through scikit-learn: transformers as embedders, and frames with categories as a comparable pair."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

from otdd_flash import dataset_distance, from_arrays, from_dataframe, load
from otdd_flash.data import subsample
from otdd_flash.data.features import Batching, Features, TableEmbedder, TransformerEmbedder, table_pair, table_pipeline

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(3)


def blob(n: int = 40, d: int = 6, shift: float = 0.0, **options: object):
    x = RNG.normal(size=(n, d)) * np.arange(1, d + 1) + shift
    return from_arrays(x, np.arange(n) % 3, name=f"blob{shift:g}", **options)


def frame(n: int, seed: int, colours: tuple[str, ...] = ("red", "green", "blue")):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "size": rng.normal(100, 20, n),
            "colour": rng.choice(colours, n),
            "count": rng.integers(0, 9, n),
            "new": rng.random(n) < 0.3,
            "kind": np.where(rng.random(n) < 0.5, "a", "b"),
        }
    )


@pytest.mark.parametrize("side", ["source", "target", "both"])
def test_an_unfitted_scaler_does_what_standardize_does(side: str) -> None:
    a, b = blob(30), blob(30, shift=4)
    scaler = StandardScaler()
    ours = Features(scaler, fit_on=side).apply(a, b)
    theirs = Features(scaling="standardize", fit_on=side).apply(a, b)
    for x, y in zip(ours[:2], theirs[:2], strict=True):
        assert torch.allclose(x.x, y.x, rtol=1e-12)
    assert not hasattr(scaler, "mean_")  # a clone is fitted
    assert ours[2].embedders["source"] == ["scikit-learn:StandardScaler"]


def test_a_fitted_pipeline_is_used_as_it_is_and_in_chains() -> None:
    a, b = blob(), blob(30, shift=2)
    pipeline = make_pipeline(StandardScaler(), PCA(2)).fit(b.x.numpy())
    x, y, record = Features(pipeline).apply(a, b)
    assert np.allclose(x.x.numpy(), pipeline.transform(a.x.numpy()))
    assert np.allclose(y.x.numpy(), pipeline.transform(b.x.numpy()))
    assert record.embedders["target"] == ["scikit-learn:StandardScaler+PCA"]
    chained = Features([StandardScaler(), "pca:2"], fit_on="target").apply(a, b)
    assert torch.allclose(torch.cdist(chained[0].x, chained[1].x), torch.cdist(x.x, y.x), atol=1e-9)


def test_a_supervised_transformer_learns_from_the_classes_of_one_side() -> None:
    a = load("iris")
    x, _, _ = Features(LinearDiscriminantAnalysis(n_components=2)).apply(a, a)
    expected = LinearDiscriminantAnalysis(n_components=2).fit(a.x.numpy(), a.y.numpy()).transform(a.x.numpy())
    assert np.allclose(x.x.numpy(), expected, atol=1e-6)


class Broken(TransformerMixin, BaseEstimator):
    def fit(self, x, y=None):
        self.fitted_ = True
        return self

    def transform(self, x):
        return x[:-1]


def test_transformers_that_cannot_serve_are_refused() -> None:
    a = blob()
    weighted = blob(weights=RNG.random(40))
    with pytest.raises(ValueError, match="blob0 has weights, which scikit-learn:StandardScaler would not heed"):
        Features(StandardScaler()).apply(weighted, a)
    with pytest.raises(ValueError, match="was fitted on 6 features, blob0 has 4: give each side its own"):
        Features(StandardScaler()).apply(a, blob(d=4))
    with pytest.raises(ValueError, match=re.escape("is fitted on sets of one width, got [6, 4] features")):
        Features(StandardScaler(), fit_on="both").apply(a, blob(d=4))
    with pytest.raises(ValueError, match=re.escape("one row a sample and k >= 1, got shape (39, 6)")):
        Features(Broken()).apply(a, a)
    with pytest.raises(ValueError, match=re.escape("k >= 1, got shape (40, 0)")):
        Features(FunctionTransformer(lambda x: x[:, :0])).apply(a, a)
    assert TransformerEmbedder(PCA(2)).fitted(a).embed(a, Batching(progress=False)).shape == (40, 2)


def test_a_transformer_that_works_in_place_leaves_the_data_alone() -> None:
    rows = RNG.normal(3, 2, size=(20, 4))
    before, a = rows.copy(), from_arrays(rows, np.arange(20) % 2)
    found = Features(StandardScaler(copy=False)).apply(a, a)[0]
    assert np.allclose(found.x.numpy(), (before - before.mean(0)) / before.std(0))
    assert np.array_equal(rows, before)
    assert np.array_equal(a.x.numpy(), before)


def test_categories_and_numbers_count_alike() -> None:
    """A pair of independent rows: 2 for a standardised number, twice the Gini index for a category."""
    data = frame(400, 0)
    data["label"] = 1
    a, _ = table_pair(data, data, label="label")
    names = table_pipeline(data, exclude=["label"]).fit(data).get_feature_names_out().tolist()
    assert names == [
        "numbers__size", "numbers__count", "categories__colour_blue", "categories__colour_green",
        "categories__colour_red", "categories__new_False", "categories__new_True", "categories__kind_a",
        "categories__kind_b",
    ]  # fmt: skip
    spread = 2 * a.x.var(0, correction=0)
    shares = data["colour"].value_counts(normalize=True).to_numpy()
    assert spread[:2].tolist() == pytest.approx([2, 2])
    assert float(spread[2:5].sum()) == pytest.approx(2 * (1 - (shares**2).sum()))


def test_the_pair_has_the_distance_of_the_arrays_made_by_hand() -> None:
    source, target = frame(60, 1), frame(50, 2, ("red", "violet"))
    source["label"], target["label"] = np.arange(60) % 2, np.arange(50) % 3
    a, b = table_pair(source, target, label="label", names=("left", "right"))
    assert (a.name, b.name, a.d, b.d) == ("left", "right", 2 + 4 + 2 + 2, 10)  # violet and green for both sides

    def by_hand(side):
        numbers = (side[["size", "count"]] - source[["size", "count"]].mean()) / source[["size", "count"]].std(ddof=0)
        colours = [side["colour"] == colour for colour in ("blue", "green", "red", "violet")]
        kinds = [~side["new"], side["new"], side["kind"] == "a", side["kind"] == "b"]
        return np.column_stack([numbers, *colours, *kinds]).astype(float)

    assert np.allclose(a.x.numpy(), by_hand(source))
    assert np.allclose(b.x.numpy(), by_hand(target))
    expected = dataset_distance(
        from_arrays(by_hand(source), source["label"]), from_arrays(by_hand(target), target["label"])
    )
    assert dataset_distance(a, b).value == pytest.approx(expected.value, rel=1e-9)
    assert dataset_distance(*table_pair(source, source, label="label")).value == 0.0


def test_rows_without_a_label_are_dropped_and_not_fitted_on() -> None:
    source, target = frame(30, 4), frame(30, 5)
    source["label"], target["label"], source["w"], target["w"] = "x", "y", 1.0, 2.0
    source.loc[3, "size"], source.loc[3, "label"] = 1e9, None
    a, _ = table_pair(source, target, label="label", weights="w")
    assert a.n == 29
    assert a.dropped == {"unlabelled": 1}
    assert a.ids.tolist() == [i for i in range(30) if i != 3]
    assert float(a.x[:, 0].mean()) == pytest.approx(0.0, abs=1e-12)


def test_a_pipeline_of_the_user_may_fill_what_is_missing() -> None:
    source, target = (frame(40, seed)[["size", "count"]] for seed in (6, 7))
    source["label"], target["label"] = 0, 0
    target.loc[2, "size"] = np.nan
    with pytest.raises(ValueError, match="column 'size' has 1 missing values: drop the rows, fill them"):
        table_pair(source, target, label="label")
    mine = make_pipeline(SimpleImputer(), QuantileTransformer(n_quantiles=20))
    _, b = table_pair(source, target, label="label", transformer=mine)
    fitted = mine.fit(source[["size", "count"]])
    assert np.allclose(b.x.numpy(), fitted.transform(target[["size", "count"]]))
    _, again = table_pair(target, target, label="label", transformer=fitted)  # fitted: used as it is
    assert torch.equal(again.x, b.x)


def test_frames_that_do_not_fit_are_refused_by_column() -> None:
    data = frame(20, 8)
    data["label"] = 0
    cases = [
        (data.drop(columns="kind"), "the frames have different columns, ['kind']"),
        (data.drop(columns="label"), "no column 'label'"),
        (data.assign(kind=pandas.Timestamp("2020-01-01")), "column 'kind' holds datetime64"),
        (data.assign(kind=3), "column 'kind' holds values of several kinds, ['int', 'str']"),
        (pandas.concat([data, data[["size"]]], axis=1), "column 'size' is there twice"),
        (data.assign(size=[np.inf] + [1.0] * 19), "column 'size' has 1 infinite values"),
        (data.assign(kind=[["a"]] * 20), "column 'kind' holds values that are no categories: "),
        (data[:0], "target has no rows"),
    ]
    for other, message in cases:
        with pytest.raises(ValueError, match=re.escape(message)):
            table_pair(data, other, label="label")
    with pytest.raises(TypeError, match="target must be a pandas data frame, got ndarray"):
        table_pair(data, data.to_numpy(), label="label")
    with pytest.raises(TypeError, match="transformer must have fit and transform, got str"):
        table_pair(data, data, label="label", transformer="scale")
    with pytest.raises(ValueError, match="fit_on must be"):
        table_pair(data, data, label="label", fit_on="left")
    with pytest.raises(ValueError, match="categorical column 'hue' is not among the features"):
        table_pipeline(data, exclude=["label"], categorical=["hue"])
    with pytest.raises(TypeError, match=re.escape("exclude must be a list of columns, got the string 'label'")):
        table_pipeline(data, exclude="label")
    with pytest.raises(TypeError, match="categorical must be a list of columns, got the string 'kind'"):
        table_pipeline(data, categorical="kind")
    with pytest.raises(ValueError, match="no feature column is left"):
        table_pipeline(data[["label"]], exclude=["label"])
    with pytest.raises(ValueError, match="needs a data frame"):
        table_pipeline()


def test_a_category_that_turns_up_later_is_an_error() -> None:
    data = frame(20, 9)
    fitted = table_pipeline(data, scale=False).fit(data)
    assert fitted.transform(data)[:, 0].tolist() == data["size"].tolist()  # not scaled
    with pytest.raises(ValueError, match="Found unknown categories"):
        fitted.transform(data.assign(colour="octarine"))


def test_integers_can_be_named_as_categories() -> None:
    data = frame(50, 10)[["count"]]
    found = table_pipeline(data, categorical=["count"]).fit_transform(data)
    assert found.shape == (50, data["count"].nunique())
    assert (found.sum(1) == 1).all()


def test_a_frame_of_numbers_alone_needs_no_pipeline() -> None:
    data = frame(30, 11)[["size", "count"]].assign(label=np.arange(30) % 2)
    a, b = table_pair(data, data[::-1], label="label")
    plain = from_dataframe(data, label="label")
    x, _, _ = Features(scaling="standardize").apply(plain, plain)
    assert torch.allclose(a.x, x.x, rtol=1e-9)
    assert torch.allclose(b.x.flip(0), x.x, rtol=1e-9)


def mixed(n: int, seed: int, cities: tuple[str, ...]):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": rng.normal(40, 9, n).round(1),
            "city": rng.choice(cities, n),
            "vip": rng.random(n) < 0.3,
            "label": rng.integers(0, 2, n),
        }
    )


def test_tables_of_files_have_the_distance_of_their_frames(tmp_path) -> None:
    old, new = mixed(40, 1, ("Rome", "Oslo")), mixed(30, 2, ("Bonn", "Oslo"))
    old.to_csv(tmp_path / "old.csv", index=False)
    new.to_parquet(tmp_path / "new.parquet", index=False)
    a = load("csv", path=tmp_path / "old.csv", table=True)
    b = load("parquet", path=tmp_path / "new.parquet", table=True)
    assert repr(a) == "TableDataset('old', n=40, columns=3, classes=2)"
    for fit_on in ("source", "target", "both"):
        ours = Features("table", fit_on=fit_on).apply(a, b)
        theirs = table_pair(old, new, label="label", fit_on=fit_on)
        for x, y in zip(ours[:2], theirs, strict=True):
            assert x.fingerprint == y.fingerprint
    assert ours[2].embedders["target"] == ["table"]
    assert Features(["table", "pca:2"]).apply(a, b)[1].d == 2
    part = load("csv", path=tmp_path / "old.csv", table=True, max_samples=9, classes=[1])
    assert part.frame["age"].tolist() == old["age"][part.ids.tolist()].tolist()


def test_a_table_needs_its_embedder_and_the_embedder_the_columns(tmp_path) -> None:
    mixed(20, 1, ("Rome", "Oslo")).to_csv(tmp_path / "old.csv", index=False)
    table, iris = load("csv", path=tmp_path / "old.csv", table=True), load("iris", table=True)
    with pytest.raises(ValueError, match="old holds a table: give embedder='table'"):
        Features().apply(table, table)
    with pytest.raises(ValueError, match="old holds a table, pca:2 takes numbers: put the embedder table first"):
        Features("pca:2").apply(table, table)
    with pytest.raises(ValueError, match="the frames have different columns"):
        Features("table").apply(table, iris)
    with pytest.raises(ValueError, match="old holds columns of several kinds"):
        table.x  # noqa: B018
    with pytest.raises(TypeError, match="source must be a LabeledDataset, got TableDataset"):
        dataset_distance(table, table)
    with pytest.raises(ValueError, match="resize is for pictures, old holds a table"):
        load("csv", path=tmp_path / "old.csv", table=True, resize=(2, 2))
    standard = Features(scaling="standardize").apply(iris, iris)[0]
    assert torch.allclose(Features("table").apply(iris, iris)[0].x, standard.x)  # numbers alone


def test_texts_and_tables_are_drawn_as_numbers_are(tmp_path) -> None:
    frame = mixed(40, 1, ("Rome", "Oslo"))
    frame.to_csv(tmp_path / "old.csv", index=False)
    table, numbers = (
        load("csv", path=tmp_path / "old.csv", table=True),
        load("csv", path=tmp_path / "old.csv", features="age"),
    )
    texts = load("csv", path=tmp_path / "old.csv", text="city")
    for data in (table, texts):
        part = subsample(data, 9, seed=2)
        assert part.ids.tolist() == subsample(numbers, 9, seed=2).ids.tolist()
        assert data.subset(data.y == 1).n == int(data.class_counts[1])
        with pytest.raises(ValueError, match="index names row 40, but there are 40 rows"):
            data.subset([40])
    assert subsample(table, 9).frame["age"].tolist() == frame["age"][subsample(table, 9).ids.tolist()].tolist()
    assert subsample(texts, 9).texts == tuple(frame["city"][subsample(texts, 9).ids.tolist()])


def test_categories_are_fixed_where_there_are_many_sets(tmp_path) -> None:
    old, new = (tmp_path / f"{name}.csv" for name in ("old", "new"))
    mixed(20, 1, ("Rome", "Oslo")).to_csv(old, index=False)
    mixed(20, 2, ("Bonn", "Oslo")).to_csv(new, index=False)
    a, b = (load("csv", path=path, table=True) for path in (old, new))
    fixed = TableEmbedder().fitted(a)
    with pytest.raises(ValueError, match=r"new does not fit the table .*unknown categories \['Bonn'\]"):
        Features(fixed).apply(a, b)
    wide = TableEmbedder().seen(a, b)
    assert [Features(wide).apply(x, y)[1].d for x, y in ((a, a), (a, b), (b, b))] == [6, 6, 6]
