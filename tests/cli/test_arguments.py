"""What is typed on the command line: keys, names, paths and text, and the errors that name a way out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from otdd_flash.cli.arguments import keeps_no_files, literal, prepare, quoted
from otdd_flash.cli.exit_codes import UsageError
from otdd_flash.cli.keys import groups_of, keys_of
from otdd_flash.cli.tasks import TASKS

Command = Callable[..., SimpleNamespace]
QUICK = ("labels=means", "max_samples=40", "device=cpu", "output=json")


def save_set(path: Path) -> Path:
    """Two classes of points on a line."""
    np.savez(path, x=np.arange(40.0)[:, None].repeat(4, 1), y=np.arange(40) % 2)
    return path


@pytest.mark.parametrize("name", TASKS)
def test_help_has_one_line_for_every_key_and_no_other(otdd: Command, name: str) -> None:
    text = otdd(name, "--help").out.split("Keys, with their values:\n\n")[1].split("\n\nGroups")[0]
    lines = [line.strip() for line in text.splitlines()]
    keys = keys_of(TASKS[name])
    assert [line.partition("=")[0] for line in lines] == list(keys)
    for line, key in zip(lines, keys.values(), strict=True):
        assert len(key.about) > 5, f"{key.name} says nothing of itself"
        assert line.endswith(key.about)


def test_help_shows_the_values_of_what_else_was_given(otdd: Command) -> None:
    text = otdd("distance", "--help", "labels=sinkhorn", "solver.tol=1e-5").out
    assert "labels.distance=sinkhorn " in text
    assert "solver.tol=1e-05 " in text


@pytest.mark.parametrize(
    ("task", "absent"),
    [
        ("distance", ("stepper", "dynamics", "bootstrap", "screen")),
        ("values", ("convention", "solver.reach", "stepper")),
        ("select", ("convention", "solver.debiased")),
        ("matrix", ("features.fit_on", "features.target_embedder", "source")),
        ("bench", ("solver.reach", "labels")),
        ("info", ("seed", "device")),
    ],
)
def test_a_task_offers_only_what_it_takes(otdd: Command, task: str, absent: tuple[str, ...]) -> None:
    lines = otdd(task, "--help").out.splitlines()
    for name in absent:
        assert not any(line.startswith((f"  {name}=", f"  {name}.", f"  {name}:")) for line in lines), name
        outcome = otdd(task, f"{name}=1")
        assert outcome.code == 2
        assert f"{name}=1" in outcome.errors[0]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("epsilon=1", "did you mean labels.epsilon or solver.epsilon"),
        ("label=species", "did you mean source.label or target.label"),
        ("max_sample=10", "did you mean max_samples"),
        ("solver.epsilom=1", "did you mean solver.epsilon"),
        ("source.labels=x", "did you mean source.label"),
        ("stepper=euler", "it is a key of otdd flow"),
        ("labels=gausian", "did you mean gaussian"),
        ("source=fashon_mnist", "did you mean fashion_mnist"),
        ("source=flowers.csv", "source=csv:flowers.csv"),
        ("source={nmae:iris}", "has no key 'source.nmae'; did you mean source.name"),
        ("b.csv", "quoted for the shell"),
        ("seed", "did you mean seed=...?"),
        ("=3", "has no key before"),
        ("source.classes=[a#b]", "quote text"),
        ("source.path='a", 'there is no file "\'a"'),
    ],
)
def test_near_names_and_the_way_out(otdd: Command, argument: str, words: str) -> None:
    outcome = otdd("distance", "source=csv", "source.path=none.csv", "target=iris", argument)
    assert outcome.code in (1, 2)
    assert (outcome.out, len(outcome.errors)) == ("", 1)
    assert words in outcome.errors[0]
    assert outcome.code == 1 or argument in outcome.errors[0]


@pytest.mark.parametrize(
    "text", ["a b", "it's", '"', "\\", "a\\", "\\'", "\\\\'x\\", "größe [1] (2), {3}=4 #&;!~.csv", "日本", "\udce9"]
)
def test_text_survives_hydras_grammar(text: str) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    assert parser.parse_override(f"key={quoted(text)}").value() == text
    given = {"name": text, "classes": [1, "a", None, True], "of": {"b": 1.5}}
    assert parser.parse_override(f"key={literal(given)}").value() == given


@pytest.mark.parametrize(
    "name",
    [
        "größe.npz",
        "a b.npz",
        "[a] (1).npz",
        "it's.npz",
        "a=b.npz",
        'say "x".npz',
        "{x}.npz",
        "日本 #1 & 2;!.npz",
        "1e3",
    ],
)
def test_paths_with_any_characters(otdd: Command, tmp_path: Path, name: str) -> None:
    save_set(tmp_path / "plain.npz").rename(tmp_path / name)
    for arguments in (("source=npz", f"source.path={name}"), (f"source=npz:{name}",)):
        outcome = otdd("distance", *arguments, f"target={arguments[-1].partition('=')[2]}" if len(arguments) == 1 else
                       "target=iris", *QUICK)  # fmt: skip
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out)["names"][0] == Path(name).stem


def test_a_path_that_is_no_utf_8(otdd: Command, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.npz")
    save_set(tmp_path / "plain.npz").rename(tmp_path / name)
    for output in ("json", "table"):
        outcome = otdd("distance", f"source=npz:{name}", "target=iris", *QUICK[:-1], f"output={output}")
        assert outcome.code == 0, outcome.err


def test_a_comma_is_two_values_and_the_error_says_what_to_write(otdd: Command) -> None:
    outcome = otdd("distance", "source=csv", "source.path=a,b.csv", "target=iris")
    assert outcome.code == 2
    for part in ("source.path=a,b.csv", "--multirun", "\"source.path='a,b.csv'\""):
        assert part in outcome.errors[0]


def test_lists_and_mappings_in_any_script() -> None:
    given = ["source.classes=[größe, 日本,a]", "target={name:npz:Maße 1.npz,as:größe}"]
    assert prepare(TASKS["distance"], given) == [
        "source.classes=['größe','日本',a]", "target={name:'npz:Maße 1.npz',title:'größe'}",
    ]  # fmt: skip


def test_names_and_paths_mix_in_a_sweep(otdd: Command, tmp_path: Path) -> None:
    save_set(tmp_path / "Maße 1.npz")
    targets = "target=iris,npz:Maße 1.npz,{name:iris,classes:[virginica],as:one kind}"
    outcome = otdd("distance", "--multirun", "source=iris", targets, *QUICK)
    assert outcome.code == 0, outcome.err
    names = [json.loads(line)["names"][1] for line in outcome.out.splitlines()]
    assert names == ["iris", "Maße 1", "one kind"]


def test_every_task_takes_paths_and_titles(otdd: Command, tmp_path: Path) -> None:
    save_set(tmp_path / "mine.npz")
    one, two = "{name:'npz:mine.npz',as:first}", "{name:iris,as:second}"
    sides = (f"source={one}", f"target={two}")
    few = ("solver.relative_epsilon=0.5", "solver.tol=0.01", *QUICK)
    runs = {
        "distance": (*sides, *few),
        "values": (*sides, *few),
        "select": (*sides, f"more=[iris,{one.replace('first', 'third')}]", "n_to_select=5", *few),
        "rank": (f"target={two}", f"candidates=[{one},iris]", "bootstrap=0", *few),
        "matrix": (f"datasets=[{one},{two}]", *few),
        "check": (*sides, "gate.permutations=9", "gate.alpha=0.1", "max_samples=30", "output=json"),
    }
    for task, arguments in runs.items():
        outcome = otdd(task, *arguments)
        assert outcome.code in (0, 3), (task, outcome.err)
        assert "first" in outcome.out, task
    table = otdd("distance", *sides, *few[:-1])
    assert table.out.startswith("first -> second\n")
    assert otdd("distance", "source=iris", "source.as=mine", "target=iris", *few[:-1]).out.startswith("mine -> iris\n")


def test_a_ranking_names_its_target_by_the_file(otdd: Command, tmp_path: Path) -> None:
    save_set(tmp_path / "mine.npz")
    outcome = otdd("rank", "target=npz", "target.path=mine.npz", "candidates=[iris]", "bootstrap=0", *QUICK)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["target"] == "mine"


def test_the_names_of_data_sets_are_spelled_as_in_python() -> None:
    prepared = prepare(TASKS["distance"], ["source=Fashion-MNIST", "target=digits", "-m", "seed=1,2"])
    assert prepared == ["dataset@source=fashion_mnist", "dataset@target=digits", "seed=1,2", "-m"]


def test_flags_come_last_with_their_values() -> None:
    given = ["seed=1", "-m", "strict=true", "--cfg", "job", "+experiment=demo", "~cache_dir", "--package=x=y"]
    wanted = ["seed=1", "strict=true", "+experiment=demo", "~cache_dir", "-m", "--cfg", "job", "--package=x=y"]
    assert prepare(TASKS["distance"], given) == wanted


def test_text_keys_keep_what_looks_like_a_number() -> None:
    assert prepare(TASKS["distance"], ["source.label=1e3", "source.label=true"]) == [
        "source.label='1e3'", "source.label='true'",
    ]  # fmt: skip
    assert prepare(TASKS["distance"], ["source.label=null", "device=${data_root}"]) == [
        "source.label=null", "device=${data_root}",
    ]  # fmt: skip


def test_groups_are_those_of_the_tasks_file() -> None:
    assert list(groups_of(TASKS["rank"])) == ["dataset@target", "features", "labels", "solver", "output"]
    with pytest.raises(UsageError, match="has no key 'dynamics'"):
        prepare(TASKS["rank"], ["dynamics=tied"])


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [(["output.files=false"], True), (["output.files=False", "output.files=true"], False), (["output=json"], False)],
)
def test_the_last_word_on_files_counts(arguments: list[str], kept: bool) -> None:
    assert keeps_no_files(TASKS["distance"], arguments) == kept
    assert keeps_no_files(TASKS["info"], [])


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("+source.options.sep=;", """quote it, as "+source.options.sep=';'\""""),
        ("source={name: csv, path: t.csv, sep: ;}", """quote text that has other characters"""),
        ("source.na_values=[NA,;]", """quote text that has other characters"""),
    ],
)
def test_what_cannot_be_read_is_named_with_the_quoting_to_use(otdd: Command, argument: str, advice: str) -> None:
    outcome = otdd("distance", "target=iris", argument)
    assert outcome.code == 2
    (line,) = outcome.errors
    assert line.startswith(f"otdd distance: error: {argument!r} cannot be read (token recognition error at: ';'): ")
    assert advice in line
    assert line.count("token recognition") == 1


def test_a_semicolon_needs_no_quotes(otdd: Command, tmp_path: Path) -> None:
    rows = "".join(f"{i};{i % 3};{i % 2};1;{'xy'[i % 2]}\n" for i in range(12))
    (tmp_path / "t.csv").write_text("a;b;c;d;label\n" + rows)
    for typed in (";", "';'", '";"'):
        outcome = otdd("distance", "source=csv:t.csv", f"source.sep={typed}", "target=iris", "max_samples=12")
        assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("argument", ["++progress=${now:}", "progress=${nosuch}", "seed=${now:}"])
def test_a_reference_that_cannot_be_resolved_names_its_key(otdd: Command, argument: str) -> None:
    outcome = otdd("distance", "source=iris", "target=iris", argument)
    assert outcome.code == 2
    (line,) = outcome.errors
    assert line.startswith(f"otdd distance: error: {argument.strip('+').partition('=')[0]}: ")
    assert "object_type" not in line


@pytest.mark.parametrize("argument", ["stepper.rate=nan", "solver.tol=inf", "patience_relative=-inf", "seed=nan"])
def test_numbers_that_are_not_finite_are_refused_by_their_key(otdd: Command, tmp_path: Path, argument: str) -> None:
    outcome = otdd("flow", "source=iris", "target=iris", argument)
    assert outcome.code in (1, 2)
    (line,) = outcome.errors
    assert argument.partition("=")[0] in line
    assert "JSON" not in line
    assert not list(tmp_path.rglob("settings.json"))


def test_a_word_near_a_group_and_the_end_of_a_key_gets_both(otdd: Command) -> None:
    (line,) = otdd("distance", "source=iris", "target=iris", "label=means").errors
    assert "did you mean source.label or target.label or labels?" in line
