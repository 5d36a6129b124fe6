"""The page: whole, harmless, the same each time, and showing the numbers of the results."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.errors import MissingDependencyError
from otdd_flash.palette import LEVELS
from otdd_flash.reporting import page as pages
from otdd_flash.reporting import render, report
from otdd_flash.reporting.numbers import number, share
from tests.reporting.pages import Element, Results, blobs, make_results, parse

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$x_{ {{ 7*7 }} </style>\x00\u202e]]>")
HOSTILE_SETS = ("</title><b>", "a'b\"c&amp;", "<!-- -->$\\frac{$", "日本" + "long " * 30)


@pytest.fixture(scope="module")
def page(results: Results) -> Element:
    return parse(render(results.listed()))


def picture(address: str) -> torch.Tensor:
    """Pixels behind a ``data:`` address."""
    images = pytest.importorskip("PIL.Image")
    image = images.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))
    import numpy

    return torch.from_numpy(numpy.array(image))


def test_all_sections_are_there_and_linked(page: Element) -> None:
    anchors = [section.attributes["id"] for section in page.find("section")]
    assert anchors == ["distance", "class-distances", "class-matching", "values", "ranking", "sets", "parameters"]
    assert [link.attributes["href"] for link in page.find("nav")[0].find("a")] == [f"#{anchor}" for anchor in anchors]
    assert page.find("title")[0].text == page.find("h1")[0].text == "wild → tame"
    assert page.find("html")[0].attributes["lang"] == "en"
    metas = {one.attributes.get("name"): one.attributes.get("content") for one in page.find("meta")}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["color-scheme"] == "light dark"
    assert "prefers-color-scheme: dark" in page.find("style")[0].text


def test_the_page_asks_for_nothing_and_runs_nothing(results: Results) -> None:
    text = render(results.listed())
    words = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
    assert not re.search(r"https?:|//|@import|@font-face|javascript:", words, re.IGNORECASE)
    assert set(re.findall(r"url\(([^)]?)", text)) <= {"#"}
    tree = parse(text)
    assert not tree.find("script") + tree.find("iframe") + tree.find("object") + tree.find("form")
    for element in tree.walk():
        assert not any(name.startswith("on") for name in element.attributes)
        for name in ("href", "src", "xlink:href", "action", "data", "srcset"):
            address = element.attributes.get(name) or "#"
            assert address.startswith(("#", "data:image/png;base64,")) or address == "data:,", address
    policies = [one for one in tree.find("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert [one.attributes["content"] for one in policies] == [
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    ]


def test_ids_are_unique_and_references_lead_somewhere(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.walk() if "id" in element.attributes]
    shared = {one for one in ids if ids.count(one) > 1}
    assert not shared & {section.attributes["id"] for section in page.find("section")}
    for element in page.walk():
        for name in ("href", "xlink:href"):
            target = element.attributes.get(name) or ""
            assert not target.startswith("#") or target[1:] in ids
    for one in shared:  # matplotlib names a thing by its contents
        assert len({repr(element) for element in page.walk() if element.attributes.get("id") == one}) == 1


def test_the_number_and_its_certificate(page: Element, results: Results) -> None:
    section, result = page.section("distance"), results.distance
    assert section.find("span", class_="value")[0].text == number(result.value)
    assert f"distance (its root) {number(result.root)}" in section.text
    assert section.find("p", class_="verdict good")
    facts = section.facts
    assert facts["dual and primal value"] == f"{number(result.dual, 6)} and {number(result.primal, 6)}"
    assert facts["samples"] == "40 × 40"
    assert facts["epsilon"] == f"{number(result.epsilon)} ({number(result.relative_epsilon, 3)} of the mean cost)"
    ranked = results.ranking["wild"]
    assert facts["95% interval of the value, bias subtracted"].startswith(
        f"{number(ranked.low)} to {number(ranked.high)}"
    )
    assert facts["sampling bias of the value"] == number(ranked.bias)
    assert not page.find("div", role="alert")


def test_a_ranking_of_another_problem_lends_no_interval(results: Results) -> None:
    other = replace(results.ranking, epsilon=2 * results.ranking.epsilon)
    for ranking in (other, replace(results.ranking, target="elsewhere")):
        tree = parse(render([results.distance, ranking]))
        assert tree.section("distance").facts["interval"] == "not computed"
        assert tree.section("ranking")
    alone = replace(results.ranking, candidates=(results.ranking["wild"],))
    tree = parse(render([results.distance, alone]))
    assert not tree.find("section", id="ranking")
    assert "interval" not in tree.section("distance").facts


def test_class_distances_are_roots_of_the_table(page: Element, results: Results) -> None:
    table = page.section("class-distances").find("table")[0]
    labels = results.distance.label_distances
    head, *rows = table.rows
    assert head == ["source ↓ target →", "cat", "dog", "emu"]
    roots = labels.source_target.sqrt()
    assert rows == [
        [name, *(number(float(v)) for v in row)] for name, row in zip(labels.source_names, roots, strict=True)
    ]
    cells = [cell.attributes["class"] for cell in table.find("td")]
    order = roots.flatten().argsort().tolist()
    levels = [int(cells[i].removeprefix("q")) for i in order]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, len(LEVELS["light"]) - 1)
    folded = page.section("class-distances").find("details")
    assert [one.find("summary")[0].text for one in folded] == ["Distances within wild", "Distances within tame"]


def test_matching_is_the_plans(page: Element, results: Results) -> None:
    heat, table = page.section("class-matching").find("table")
    plan = results.distance.plan.dense()
    y = torch.arange(40) % 3
    mass = torch.stack([torch.stack([plan[y == i][:, y == j].sum() for j in range(3)]) for i in range(3)])
    sent, received = mass / mass.sum(1, keepdim=True), mass / mass.sum(0)
    assert [row[1:] for row in heat.rows[1:]] == [[share(float(v)) for v in row] for row in sent]
    names = ("cat", "dog", "emu")
    for j, (name, source, part, _) in enumerate(table.rows[1:]):
        best = int(received[:, j].argmax())
        assert (name, source, part) == (names[j], names[best], share(float(received[best, j])))
        bar = table.find("span", class_="bar")[j].attributes["style"]
        width = float(re.search(r"width:([\d.]+)%", bar)[1])
        assert width == pytest.approx(100 * float(received[best, j]), abs=0.01)


def test_values_show_the_samples_at_both_ends(results: Results) -> None:
    tree = parse(render(results.values, top=3))
    worst, best, suspects = tree.section("values").find("ul", class_="gallery")
    order = results.values.order().tolist()
    pool, scores = results.values.pool, results.values.scores()
    for gallery, rows in (
        (worst, order[:3]), (best, order[::-1][:3]), (suspects, results.values.mislabelled(3).tolist()),
    ):  # fmt: skip
        shown = [picture(image.attributes["src"]) for image in gallery.find("img")]
        for row, pixels in zip(rows, shown, strict=True):
            assert torch.equal(pixels, (pool.x[row].reshape(3, 4) * 255).round().to(torch.uint8))
        assert [one.text for one in gallery.find("b")] == [pool.class_names[int(pool.y[row])] for row in rows]
        assert [one.text for one in gallery.find("small")][1::2] == [f"row {row}" for row in rows]
    assert [one.text for one in worst.find("small")][::2] == [f"{float(scores[row]):+.3g}" for row in order[:3]]
    means = results.values.by_class()
    (table,) = tree.section("values").find("table")
    assert [row[:2] for row in table.rows[1:]] == [
        [name, f"{means[name]:+.3g}"] for name in sorted(means, key=lambda name: -means[name])
    ]


def test_samples_that_are_no_pictures_are_listed(results: Results) -> None:
    plain = replace(results.values, pool=replace(results.values.pool, image_shape=None))
    tree = parse(render(plain, top=2))
    assert not tree.find("img")
    worst = tree.section("values").find("table")[0]
    order = plain.order().tolist()
    assert [int(row[0]) for row in worst.rows[1:]] == order[:2]
    tree = parse(render(plain, top=2, pictures=results.values.pool))
    assert len(tree.find("img")) == 6
    with pytest.raises(ValueError, match="pictures has 3 samples, the valued pool 40"):
        render(plain, pictures=results.values.pool.subset([0, 1, 2]))


def test_ranking_and_matrix(page: Element, results: Results) -> None:
    table = page.section("ranking").find("table")[0]
    for place, (row, item) in enumerate(zip(table.rows[1:], results.ranking.candidates, strict=True), 1):
        assert row[:3] == [f"{place}. {item.name}", number(item.value), number(item.root)]
        assert row[3] == f"{number(item.low)} to {number(item.high)}"
    heat = page.section("sets").find("table")[0]
    for row in heat.rows[1:]:
        for name, text in zip(heat.rows[0][1:], row[1:], strict=True):
            assert text == number(results.matrix.distance(row[0], name))
    assert len(page.section("sets").find("svg")) == 2
    assert {"wild", "tame", "zoo", "farm"} <= {one.text for one in page.section("sets").find("text")}
    assert results.distance.versions["torch"] == page.section("parameters").facts["computed with torch"]
    assert page.section("parameters").facts["matrix: tol"] == "0.001"


def test_names_are_text_and_nothing_else(results: Results) -> None:
    """A page of hostile names has the elements of one of harmless names of the same lengths, attribute by attribute."""
    evil = make_results(HOSTILE, HOSTILE_SETS)
    meek_names = [chr(97 + i) * len(name) for i, name in enumerate(sorted(HOSTILE))]
    names = dict(zip(sorted(HOSTILE), meek_names, strict=True))
    meek = make_results([names[name] for name in HOSTILE], [chr(110 + i) * len(s) for i, s in enumerate(HOSTILE_SETS)])
    trees = [parse(render(one.listed())) for one in (evil, meek)]
    drawn = [{one.tag for svg in tree.find("svg") for one in svg.walk()} for tree in trees]
    assert drawn[0] == drawn[1] <= {"svg", "defs", "g", "path", "use", "clippath", "rect", "text"}
    for tree in trees:
        for svg in tree.find("svg"):
            svg.children.clear()  # names of another width leave room for another number of ticks
    shapes = [[(one.tag, sorted(one.attributes)) for one in tree.walk()] for tree in trees]
    assert shapes[0] == shapes[1]
    assert HOSTILE[0] in trees[0].section("class-distances").text
    assert "{{ 7*7 }}" in trees[0].section("class-distances").text
    assert not re.search("[\x00\u202e]", render(evil.listed()))
    assert trees[0].find("title")[0].text == f"{HOSTILE_SETS[0]} → {HOSTILE_SETS[1]}"


def test_the_same_results_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    first = report(results.listed(), tmp_path / "a.html").read_bytes()
    assert report(results.listed(), tmp_path / "b" / "b.html").read_bytes() == first
    assert len(first) < 400_000
    assert b"\r" not in first


def test_what_is_not_converged_is_said_first(results: Results) -> None:
    loose = replace(results.distance, converged=False, marginal_error=0.3)
    certificates = {**results.matrix.certificates}
    certificates[0, 1] = {**certificates[0, 1], "converged": False}
    first, second = results.ranking.candidates
    shown = [
        loose, replace(results.values, result=loose), replace(results.matrix, certificates=certificates),
        replace(results.ranking, candidates=(first, replace(second, converged=False))),
    ]  # fmt: skip
    tree = parse(render(shown))
    (alerts,) = tree.find("div", role="alert")
    assert len(alerts.find("p")) == 4
    assert all("NOT CONVERGED" in one.text for one in alerts.find("p"))
    assert len(tree.find("p", class_="verdict bad")) == 4
    main = tree.find("main")[0]
    assert next(child for child in main.children if isinstance(child, Element)) is alerts


def test_failures_and_gaps_of_a_matrix(results: Results) -> None:
    from otdd_flash.matrix.result import Failure

    values = results.matrix.values.clone()
    values[0, 3] = values[3, 0] = torch.nan
    pairs = {pair: one for pair, one in results.matrix.certificates.items() if pair != (0, 3)}
    broken = Failure(("wild", "farm"), "OSError", "no such file")
    tree = parse(render(replace(results.matrix, values=values, certificates=pairs, failures=(broken,))))
    texts = [one.text for one in tree.find("div", role="alert")[0].find("p")]
    assert texts == ["Failed: wild × farm: OSError: no such file", "1 pairs have no distance: wild × farm"]
    assert len(tree.find("td", class_="none")) == 2
    assert len(tree.section("sets").find("svg")) == 2  # of the three sets without gaps


def test_a_hundred_classes_stay_usable() -> None:
    names = [f"class {i:03d} " + "of a long name " * 3 for i in range(100)]
    sets = [blobs(names, 200, seed, name=f"set {seed}") for seed in (1, 2)]
    result = otdd.dataset_distance(*sets, relative_epsilon=0.2, label_distance="means")
    text = render(result)
    assert len(text) < 2_500_000
    tree = parse(text)
    section = tree.section("class-distances")
    svg = section.find("svg", class_="heat-picture")[0]
    light, dark = svg.find("image")
    table = result.label_distances.source_target.sqrt()
    for image, theme in ((light, "light"), (dark, "dark")):
        assert image.attributes["class"] == f"only-{theme}"
        pixels = picture(image.attributes["href"])
        assert pixels.shape == (100, 100)
        assert int(pixels.flatten()[table.argmax()]) == len(LEVELS["light"])  # 0 is kept for gaps
        assert int(pixels.flatten()[table.argmin()]) == 1
    assert len(svg.find("text")) == 200
    numbers = section.find("details")[0]
    assert numbers.find("summary")[0].text == "All numbers"
    assert len(numbers.find("td")) == 100 * 100


def test_many_more_classes_are_a_picture_alone() -> None:
    from otdd_flash.reporting.heat import Scale, heat_map

    table = torch.rand(400, 300, dtype=torch.float64)
    (block,) = heat_map(table, ["r"] * 400, ["c"] * 300, Scale.of(table), caption="", corner="")
    assert block.shape == (400, 300)
    assert sum(map(len, block.pictures.values())) < 250_000
    assert len(block.rows) < 400


def test_paths_that_cannot_be_written_are_named(results: Results, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place, message in ((tmp_path, "it is a folder"), (tmp_path / "file" / "page.html", "is no folder")):
        with pytest.raises(OSError, match=re.escape(str(place)) + ".*" + message):
            report(results.distance, place)


def test_links_are_followed_and_pipes_are_left_alone(results: Results, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "page.html").symlink_to(tmp_path / "kept" / "page.html")
    assert report(results.distance, tmp_path / "page.html") == tmp_path / "page.html"
    assert (tmp_path / "page.html").is_symlink()
    assert (tmp_path / "kept" / "page.html").read_text().startswith("<!")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no regular file"):
        report(results.distance, tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_as_long_as_the_file_system_takes(results: Results, tmp_path: Path) -> None:
    assert report(results.distance, tmp_path / ("n" * 250 + ".html")).is_file()


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_a_failure_leaves_the_old_page_and_no_half(
    step: str, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "page.html"
    place.write_text("old")
    write_text = Path.write_text

    def full(self: Path, text: str, **keywords: Any) -> None:
        write_text(self, text[:100], **keywords)
        raise OSError(28, "No space left on device")

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((Path, "write_text", full) if step == "write_text" else (os, "replace", refuse)))
    with pytest.raises(OSError, match=f"cannot write the report to {re.escape(str(place))}: No space left"):
        report(results.distance, place)
    monkeypatch.undo()
    assert place.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_says_how_to_get_it(
    package: str, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"a report needs {package}.*pip install 'otdd-flash\[report\]'"):
        report(results.distance, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_other_things_are_refused(results: Results) -> None:
    with pytest.raises(TypeError, match=r"results must be DistanceResult.*got .*value"):
        render({"value": 1.0})
    with pytest.raises(ValueError, match="results is empty"):
        render([])
    with pytest.raises(ValueError, match="top must be at least 0, got -1"):
        render(results.values, top=-1)


def test_the_door_is_a_function_whatever_was_imported(results: Results, tmp_path: Path) -> None:
    assert otdd.report is report
    assert otdd.report(results.distance, tmp_path / "page.html") == tmp_path / "page.html"
    assert isinstance(pages, type(sys))


def test_labels_that_do_not_enter_leave_no_class_distances() -> None:
    sets = [blobs(("a", "b"), 20, seed, name=f"set {seed}") for seed in (1, 2)]
    result = otdd.dataset_distance(*sets, label_distance=None, relative_epsilon=0.1)
    tree = parse(render(result))
    assert not tree.find("section", id="class-distances")
    assert "Not known" in tree.section("class-matching").text
    ranking = otdd.rank(sets[:1], sets[1], bootstrap=0, label_distance=None, epsilon=result.epsilon)
    heat = parse(render([result, ranking])).section("class-matching").find("table")[0]
    mass = ranking["set 1"].coupling
    assert heat.rows[1][1] == share(float(mass[0, 0] / mass[0].sum()))


def test_a_convention_is_said_to_be_not_converged() -> None:
    sets = [blobs(("a", "b"), 20, seed, name=f"set {seed}") for seed in (1, 2)]
    result = otdd.dataset_distance(*sets, convention="microsoft")
    tree = parse(render(result))
    (verdict,) = tree.find("p", class_="verdict bad")
    assert f"microsoft convention: {number(result.conventional['value'])}, not converged" in verdict.text
