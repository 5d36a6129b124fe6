"""Pages as trees, and small results of every kind to make them of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import torch

import otdd_flash as otdd

VOID = {"meta", "link", "img", "br", "hr", "input"}
SVG_EMPTY = {"g", "path", "use", "rect", "line", "image", "circle"}


@dataclass
class Element:
    """One element with what is in it."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    def walk(self) -> list[Element]:
        """This element and all below it, in order."""
        below = [child.walk() for child in self.children if isinstance(child, Element)]
        return [self, *(element for branch in below for element in branch)]

    def find(self, tag: str, **attributes: str) -> list[Element]:
        """Elements of a tag with these attributes (``class_`` for class)."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            one for one in self.walk() if one.tag == tag and all(one.attributes.get(k) == v for k, v in wanted.items())
        ]  # fmt: skip

    def section(self, anchor: str) -> Element:
        """The section with this id."""
        (one,) = self.find("section", id=anchor)
        return one

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join(" ".join(parts).split())

    @property
    def rows(self) -> list[list[str]]:
        """Of a table: the texts of its cells."""
        return [[c.text for c in row.children if isinstance(c, Element)] for row in self.find("tr")]

    @property
    def facts(self) -> dict[str, str]:
        """Names and values of all definition lists."""
        return {one.find("dt")[0].text: one.find("dd")[0].text for one in self.find("div") if one.find("dt")}


class Tree(HTMLParser):
    """Builds the tree; an end tag that does not close the open element is an error, as is one left open."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} repeats an attribute: {names}"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert tag in VOID | SVG_EMPTY, f"{tag} cannot close itself"
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes {self.open[-1].tag}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(page: str) -> Element:
    """The page as a tree."""
    tree = Tree()
    tree.feed(page)
    tree.close()
    assert tree.open == [tree.root], f"left open: {[element.tag for element in tree.open[1:]]}"
    return tree.root


def blobs(names: Sequence[str], n: int, seed: int, *, name: str, pictures: bool = False) -> otdd.LabeledDataset:
    """``n`` points around one centre a class; as 3 x 4 grey pictures where asked."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(len(names), 12, generator=generator, dtype=torch.float64)
    y = torch.arange(n) % len(names)
    x = centres[y] + torch.randn(n, 12, generator=generator, dtype=torch.float64)
    if pictures:
        x = ((x - x.min()) / (x.max() - x.min()) * 255).round() / 255
        x = x.reshape(n, 3, 4)
    return otdd.from_arrays(x, [names[i] for i in y.tolist()], name=name)


@dataclass
class Results:
    """Of one pair of sets."""

    distance: Any
    values: Any
    ranking: Any
    matrix: Any

    def listed(self) -> list[Any]:
        """All of them."""
        return [self.distance, self.values, self.ranking, self.matrix]


def make_results(names: Sequence[str], sets: Sequence[str], *, pictures: bool = True) -> Results:
    """Every kind of result of four small sets, the third of which is ranked too."""
    data = [blobs(names, 40, seed, name=name, pictures=pictures) for seed, name in enumerate(sets)]
    source, target, third, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distance = otdd.dataset_distance(source, target, relative_epsilon=0.1)
        ranking = otdd.rank([source, third], target, bootstrap=10, epsilon=distance.epsilon)
        values = otdd.values(source, target, relative_epsilon=0.1)
        return Results(distance, values, ranking, otdd.pairwise(data, relative_epsilon=0.1))
