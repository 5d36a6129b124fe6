"""Awkward tables give the same rows and classes, or the same refusal, whichever door they come through."""

from __future__ import annotations

import decimal
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

import otdd_flash as otdd

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

VECTORS, NAMED = "vectors", "named"  # what a door may be unable to hold


@dataclass(frozen=True)
class Case:
    """Features by column, labels, and what must come of them: the kept rows with their classes, or an error."""

    features: dict[Any, list]
    labels: list
    error: str | None = None
    needs: frozenset[str] = frozenset()
    label: Any = "label"
    kept: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", [i for i, label in enumerate(self.labels) if label is not None])

    def frame(self) -> pd.DataFrame:
        """Of pandas, with text kept as text and whole numbers beside missing ones as floats."""
        return pd.DataFrame({**self.features, self.label: self.labels})

    def arrow(self) -> Any:
        names = [str(name) for name in (*self.features, self.label)]
        return arrow.table([arrow.array(values) for values in (*self.features.values(), self.labels)], names=names)

    def expected(self) -> Any:
        """Through arrays, row by row."""
        columns = [np.array([values[i] for i in self.kept], dtype=float) for values in self.features.values()]
        x = np.concatenate([column.reshape(len(self.kept), -1) for column in columns], axis=1)
        return x, [str(self.labels[i]) for i in self.kept]


def csv(case, folder):
    case.frame().to_csv(folder / "t.csv", index=False)
    return otdd.load("csv", path=folder / "t.csv", label=case.label)


def csv_gz(case, folder):
    with gzip.open(folder / "t.csv.gz", "wt", encoding="utf-8", newline="") as stream:
        case.frame().to_csv(stream, index=False)
    return otdd.load(f"csv:{folder / 't.csv.gz'}", label=case.label)


def csv_with_its_index(case, folder):
    case.frame().to_csv(folder / "t.csv")
    return otdd.load("csv", path=folder / "t.csv", label=case.label)


def csv_of_another_kind(case, folder):
    frame = case.frame()
    frame = frame.apply(lambda column: column.astype(float) if isinstance(column[0], decimal.Decimal) else column)
    frame.to_csv(folder / "t.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    return otdd.load("csv", path=folder / "t.csv", label=case.label, sep=";", decimal=",", encoding="utf-16")


def parquet_file(case, folder):
    parquet.write_table(case.arrow(), folder / "t.parquet")
    return otdd.load("parquet", path=folder / "t.parquet", label=case.label)


def parquet_of_pandas_with_an_index(case, folder):
    case.frame().set_axis(np.arange(len(case.labels))[::-1] * 3).to_parquet(folder / "t.parquet")
    return otdd.load("parquet", path=folder / "t.parquet", label=case.label)


def parquet_parts(case, folder):
    whole, middle = case.arrow(), len(case.labels) // 2
    for name, part in (("part-0", whole[:middle]), ("part-1", whole[middle:])):
        parquet.write_table(part, folder / f"{name}.parquet")
    (folder / "_SUCCESS").touch()
    return otdd.load("parquet", path=folder, label=case.label)


def pandas(case, folder):
    return otdd.from_dataframe(case.frame(), label=case.label)


def pandas_nullable(case, folder):
    return otdd.from_dataframe(case.frame().convert_dtypes(), label=case.label)


def pandas_on_arrow(case, folder):
    return otdd.from_dataframe(case.arrow().to_pandas(types_mapper=pd.ArrowDtype), label=case.label)


def pandas_read_again(case, folder):
    """A csv file with its index, read by pandas: ``Unnamed: 0``."""
    case.frame().to_csv(folder / "t.csv")
    frame = pd.read_csv(folder / "t.csv", keep_default_na=False, na_values=[""], dtype={str(case.label): str})
    return otdd.from_dataframe(frame, label=case.label)


def polars(case, folder):
    return otdd.from_dataframe(pytest.importorskip("polars").from_arrow(case.arrow()), label=case.label)


def polars_lazy(case, folder):
    pytest.importorskip("narwhals")
    return otdd.from_dataframe(pytest.importorskip("polars").from_arrow(case.arrow()).lazy(), label=case.label)


def arrow_table(case, folder):
    return otdd.from_dataframe(case.arrow(), label=case.label)


def hugging_face(case, folder):
    ds = pytest.importorskip("datasets").Dataset(case.arrow())
    return otdd.from_huggingface(ds, features=list(map(str, case.features)), label=str(case.label))


def hugging_face_stream(case, folder):
    ds = pytest.importorskip("datasets").Dataset(case.arrow()).to_iterable_dataset()
    return otdd.from_huggingface(ds, features=list(map(str, case.features)), label=str(case.label))


def arrays(case, folder):
    x = np.column_stack([np.array(values, dtype=float) for values in case.features.values()])
    return otdd.from_arrays(x, case.labels)


def npz(case, folder):
    labels = case.labels
    if None in labels:  # an archive of plain arrays has no missing text
        labels = [np.nan if label is None else label for label in labels]
    array = np.array([float(label) if isinstance(label, decimal.Decimal) else label for label in labels])
    if array.dtype.kind == "U" and None in case.labels:
        pytest.skip("an array of text cannot hold a missing one")
    x = np.column_stack([np.array(values, dtype=float) for values in case.features.values()])
    np.savez(folder / "t.npz", x=x, y=array)
    return otdd.load("npz", path=folder / "t.npz")


PLAIN: list[Callable] = [csv, csv_gz, csv_with_its_index, csv_of_another_kind]
COLUMNAR: list[Callable] = [
    parquet_file, parquet_of_pandas_with_an_index, parquet_parts, pandas, pandas_nullable, pandas_on_arrow, polars,
    polars_lazy, arrow_table, hugging_face, hugging_face_stream,
]  # fmt: skip
ARRAYS: list[Callable] = [arrays, npz]
HALVES, TENS = [0.5, 1.5, -2.25, 3.0, 4.0, 5.0], [10, 20, 31, 42, 50, 7]
RNG = np.random.default_rng(0)
WIDE = {f"p{i}": RNG.integers(0, 255, 1200).tolist() for i in range(150)}  # more than one block of a reader
CASES = {
    "words that look like missing": Case({"a": HALVES, "b": TENS}, ["NA", "None", "null", "n/a", "nan", "NaN"]),
    "a label that is missing": Case({"a": HALVES, "b": TENS}, ["NA", None, "u", "u", None, "#N/A"]),
    "leading zeros": Case({"a": HALVES}, ["01", "1", "10", "01", "1", "10"]),
    "leading zeros alone": Case({"a": HALVES}, ["01", "02", "03", "01", "02", "10"]),
    "integers": Case({"a": HALVES}, [3, 1, 10, 3, 1, 10]),
    "integers, one missing": Case({"a": HALVES}, [3, 1, None, 3, 1, 10]),
    "flags": Case({"a": HALVES}, [True, False, True, True, False, False]),
    "one word among digits": Case(WIDE, [*(str(i % 3) for i in range(1199)), "x"]),
    "large codes": Case({"a": HALVES}, [str(10**20), "7", "7", "7", str(10**20), "8"]),
    "other scripts": Case({"größe": HALVES, "Länge": TENS}, ["é", "ß", "犬", "é", "ß", "犬"], label="Ключ"),
    "separators, quotes and lines in text": Case({"a, b": HALVES}, ['x,"y"', "x;y", "x\ny", "x;y", "x\ny", " x"]),
    "columns named by numbers": Case({0: HALVES, 1: TENS}, ["u", "v", "u", "v", "u", "v"], label=2),
    "numbers of several kinds": Case(
        {"a": HALVES, "b": TENS, "c": [True, False] * 3, "d": [2**24 + 1] * 6}, ["u", "v"] * 3
    ),
    "decimals": Case({"a": [decimal.Decimal(f"{i}.25") for i in range(6)], "b": TENS}, ["u", "v"] * 3),
    "decimals as labels": Case({"a": HALVES}, [decimal.Decimal(i % 2) for i in range(6)]),
    "vectors": Case({"v": [[i, i / 2] for i in TENS], "b": TENS}, ["u", "v"] * 3, needs=frozenset({VECTORS})),
    "a hole in an unlabelled row": Case({"a": [0.5, None, 1.5, 2.5]}, ["u", None, "v", "u"]),
    "a hole": Case({"a": TENS, "b": [1, 2, None, 4, None, 6]}, ["u", "v"] * 3,
        "column 'b' has 2 missing values .*, the first in row 2; drop the rows or fill them"),
    "no value in a column": Case({"a": TENS, "b": [None] * 6}, ["u", "v"] * 3, "column 'b' has no value in any row"),
    "text among features": Case({"a": TENS, "b": ["1", "2", "3", "NA", "5", "6"]}, ["u", "v"] * 3,
        r"columns \['b'\] (hold text|are not numeric: 'b' holds text, as 'NA' in row 3)", frozenset({NAMED})),
    "structs": Case({"a": TENS, "p": [{"x": 1, "y": 2}] * 6}, ["u", "v"] * 3,
        r"columns \['p'\] are not numeric: 'p' holds structs with the fields \['x', 'y'\]",
        frozenset({NAMED, VECTORS})),
    "lists of different lengths": Case({"v": [[1.0], [1.0, 2.0]] * 3}, ["u", "v"] * 3,
        "column 'v' holds lists of different lengths", frozenset({NAMED, VECTORS})),
    "real-valued labels": Case({"a": TENS}, [0.5, 1.25, 2.0, 3.5, 4.0, 5.0], "real-valued targets"),
}  # fmt: skip


def pairs():
    """Every case by every door that can hold it."""
    for title, case in CASES.items():
        doors = COLUMNAR if VECTORS in case.needs else [*PLAIN, *COLUMNAR]
        if not case.needs:
            doors = [*doors, *ARRAYS]
        if title in ("words that look like missing", "a label that is missing", "integers"):
            doors = [*doors, pandas_read_again]
        yield from (pytest.param(case, door, id=f"{title}-{door.__name__}") for door in doors)


@pytest.mark.parametrize(("case", "door"), list(pairs()))
def test_a_table_is_the_same_by_every_door(case, door, tmp_path):
    if case.error is not None:
        message = case.error
        if door in ARRAYS and "column" in message:  # arrays have no columns to name
            message = "rows with NaN or infinite features, the first is row"
        with pytest.raises(ValueError, match=message):
            door(case, tmp_path)
        return
    x, names = case.expected()
    data = door(case, tmp_path)
    assert data.ids.tolist() == case.kept
    assert np.array_equal(data.x.double().numpy(), x)
    assert [data.class_names[i] for i in data.y.tolist()] == names
    assert data.dropped == ({"unlabelled": len(case.labels) - len(case.kept)} if len(names) < len(case.labels) else {})
    if door not in ARRAYS:
        listed = next(note for note in data.notes if note.startswith("feature columns: "))
        assert all(str(name) in listed for name in list(case.features)[:3])
        assert "index" not in listed
        assert "Unnamed" not in listed


SMALL = "a,b,label\n1,0.5,u\n2,1.5,v\n3,2.5,u\n"


def write(folder, content):
    path = folder / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,label\n1,2,3,0\n2,3,4,1\n3,4,5,0\n", "line 2 has 4 fields, the header has 3 .* begin with a row name"),
        ("a,b,label\nr1,2,3,0\nr2,3,4,1\n", "line 2 has 4 fields, the header has 3 .* begin with a row name"),
        (SMALL + "4,5,u,9,9\n", "line 5 has 5 fields, the header has 3 .*quote fields that hold ','"),
        (SMALL + "4,5\n", "line 5 has 2 fields, the header has 3"),
        (SMALL.replace("u\n", "u,\n").replace("v\n", "v,\n"), "line 2 has 4 .*take the ',' off the end"),
        (SMALL.replace("label\n", "label,\n"), "line 2 has 3 fields, the header has 4"),
        ("a,label,label\n1,2,0\n2,3,1\n", "column 'label' is there more than once; rename or drop the copies"),
        ("a,a,label\n1,2,0\n2,3,1\n", "column 'a' is there more than once"),
        ("a,,label\n1,2,0\n2,3,1\n", r"column 1 \(counted from 0\) has no name"),
        ("a,label,\n1,0,7\n2,1,\n", r"column 2 \(counted from 0\) has values and no name in the header"),
        ("label\n1\n0\n", "no feature column is left"),
        (SMALL.replace(",", ";"), "has one column, 'a;b;label', with sep=','; give sep=';'"),
        ('a,label\n"1,5",u\n"2,5",v\n', "'a' holds text, as '1,5' in row 0 .*decimal=','"),
        ("a,label\n1,u\n?,v\n", r"'a' holds text, as '\?' in row 1 \(for missing in a csv file: na_values=\['\?'\]\)"),
        ("a,label\n1,é\n2,v\n".encode("latin-1"), "it is not utf-8 text; name the encoding .* as encoding='latin-1'"),
        ("é,label\n1,u\n2,v\n".encode("latin-1"), "it is not utf-8 text"),
        (("a,b,label\n" + "1,x,u\n" * 9999 + "2,é,v\n").encode("latin-1"), "column 'b' .* is not utf-8 text"),
        (("a,b,label\n" + "1,2,u\n" * 9999 + "2,1,é\n").encode("latin-1"), "it is not utf-8 text"),
        ('"' + "a" * 200_000, "its header is none .field larger than field limit"),
        ("\n\n", "cannot be read as a csv table: it is empty"),
    ],
)  # fmt: skip
def test_a_csv_file_that_is_not_plain_is_refused_with_the_way_out(content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        otdd.load("csv", path=write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (SMALL.replace("\n", ",\n"), {}),  # a comma at the end of every line, the header's as well
        ("\n\n" + SMALL + "\n", {}),
        ("\ufeff" + SMALL.replace("\n", "\r\n"), {}),
        (SMALL.replace(",", ";").replace(".", ","), {"sep": ";", "decimal": ","}),
        (SMALL.replace(",", "\t"), {"sep": "\\t"}),
        (SMALL.replace("u", "ü").encode("latin-1"), {"encoding": "latin-1"}),
        (SMALL.replace("u", "ü").encode("utf-16"), {"encoding": "utf-16"}),
        (SMALL + "4,?,-\n", {"na_values": ["?", "-"]}),
        (SMALL + "4,?,-\n", {"na_values": "-", "max_samples": 3, "classes": ["u", "v"], "features": "a"}),
        ("a,label,b,\n1,u,0.5,\n2,v,1.5,\n3,u,2.5,\n", {}),
        ("a,b,other,other,label\n1,0.5,0,0,u\n2,1.5,0,0,v\n3,2.5,0,0,u\n", {"features": ["a", "b"]}),
        (",,a,b,label\nx,0,1,0.5,u\nx,1,2,1.5,v\ny,0,3,2.5,u\n", {}),  # two levels of an index
    ],
)
def test_csv_files_of_many_forms_hold_the_same_table(content, options, tmp_path):
    data = otdd.load("csv", path=write(tmp_path, content), **options)
    width = 1 if options.get("features") == "a" else 2
    assert np.array_equal(data.x.numpy(), np.array([[1, 0.5], [2, 1.5], [3, 2.5]])[:, :width])
    assert [data.class_names[i].replace("ü", "u") for i in data.y.tolist()] == ["u", "v", "u"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sep": ";;"}, "sep must be one character such as"),
        ({"decimal": "·"}, "decimal must be '.' or ','"),
        ({"decimal": ","}, "sep and decimal are both ','"),
        ({"encoding": "klingon"}, "encoding must be one that Python knows, as 'latin-1', got 'klingon'"),
        ({"label": "species"}, r"no column 'species' among \['a', 'b', 'label'\]"),
        ({"features": ["a", "c"]}, "no column 'c'"),
        ({"features": []}, "features is empty: name the columns"),
        ({"features": 1.5}, "no column '1.5'"),
        ({"features": ["a"], "text": "b"}, "give features= or text=, not both"),
    ],
)
def test_options_of_csv_are_checked(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        otdd.load("csv", path=write(tmp_path, SMALL), **options)


def test_an_index_is_left_out_with_a_note_unless_it_is_asked_for(tmp_path):
    path = write(tmp_path, "," + SMALL.replace("\n1", "\n0,1").replace("\n2", "\n1,2").replace("\n3", "\n2,3"))
    data = otdd.load("csv", path=path)
    assert data.notes[1:] == (
        "feature columns: a, b",
        "left out as an index (row names or numbers): ''; features= can ask for it",
    )
    assert otdd.load("csv", path=path, features=["", "b"]).x[:, 0].tolist() == [0, 1, 2]
    named = pd.DataFrame({"a": [1, 2], "label": [0, 1]}, index=pd.Index([7, 9], name="id"))
    named.to_parquet(tmp_path / "t.parquet")
    assert otdd.load("parquet", path=tmp_path / "t.parquet").x.tolist() == [[1], [2]]
    assert otdd.from_dataframe(parquet.read_table(tmp_path / "t.parquet"), label="label").x.tolist() == [[1], [2]]


def test_a_column_that_counts_the_rows_is_warned_of():
    frame = pd.DataFrame({"id": np.arange(30), "a": RNG.normal(size=30), "label": np.arange(30) % 2})
    with pytest.warns(UserWarning, match="column 'id' counts the rows and is used as a feature"):
        otdd.from_dataframe(frame, label="label")
    with pytest.warns(UserWarning, match="column 'id' counts the rows"):
        otdd.from_dataframe(frame.assign(id=frame["id"] + 1), label="label", max_samples=25)
    otdd.from_dataframe(frame.assign(id=frame["id"] * 2), label="label")


def test_columns_by_number(tmp_path):
    frame = pd.DataFrame({0: HALVES, 1: TENS, 2: [0, 1] * 3})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (
        otdd.load("csv", path=tmp_path / "t.csv", features=[1], label=2),
        otdd.load("csv", path=tmp_path / "t.csv", features=1, label="2"),
        otdd.from_dataframe(frame, features=["1"], label=2),
    ):
        assert data.x.flatten().tolist() == TENS


def test_parts_of_a_table_must_agree_and_folders_can_be_labels(tmp_path):
    for label, values in (("01", [1.0, 2.0]), ("1", [3.0])):
        (tmp_path / "parts" / f"label={label}").mkdir(parents=True)
        parquet.write_table(arrow.table({"a": values}), tmp_path / "parts" / f"label={label}" / "p.parquet")
    data = otdd.load("parquet", path=tmp_path / "parts")
    assert [data.class_names[i] for i in data.y.tolist()] == ["01", "01", "1"]
    assert data.x.flatten().tolist() == [1, 2, 3]
    parquet.write_table(arrow.table({"a": ["x"], "label": ["u"]}), tmp_path / "parts" / "q.parquet")
    with pytest.raises(ValueError, match=r"a folder of Parquet parts: its parts do not agree: .*incompatible"):
        otdd.load("parquet", path=tmp_path / "parts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="cannot be read as a folder of Parquet parts: it holds no file"):
        otdd.load("parquet", path=tmp_path / "empty")


def test_two_halves_of_a_file_with_its_index_pass_a_check_as_without(tmp_path):
    """The row number would tell the halves apart."""
    frame = pd.DataFrame({"a": RNG.normal(size=80), "b": RNG.normal(size=80), "label": np.arange(80) % 2})
    for name, part in (("first", frame[:40]), ("second", frame[40:])):
        part.to_csv(tmp_path / f"{name}.csv")
    a, b = (otdd.load("csv", path=tmp_path / f"{name}.csv") for name in ("first", "second"))
    halves = [otdd.from_dataframe(part, label="label") for part in (frame[:40], frame[40:])]
    assert (a.fingerprint, b.fingerprint) == tuple(half.fingerprint for half in halves)


def test_texts_with_words_that_look_like_missing_are_texts(tmp_path):
    path = write(tmp_path, "words,label\nNA,u\nnull,None\n007,u\n")
    texts = otdd.load("csv", path=path, text="words")
    assert (texts.texts, texts.class_names, texts.n) == (("NA", "null", "007"), ("None", "u"), 3)
    with pytest.raises(ValueError, match="1 texts are missing, the first in row 0"):
        otdd.load("csv", path=path, text="words", na_values=["NA"])


def test_a_wide_frame_costs_no_more_than_its_columns():
    """Twice the columns take about twice the time, not four times."""
    import time

    def seconds(width):
        frame = pd.DataFrame(np.ones((3, width)))
        frame["label"] = [0, 1, 0]
        start = time.process_time()
        otdd.from_dataframe(frame, label="label")
        return time.process_time() - start

    seconds(10)
    assert seconds(8000) < 40 * max(seconds(400), 1e-3)
