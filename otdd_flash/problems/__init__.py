"""From data sets to transport problems, solved in batches: what every task of the library is made of."""

from otdd_flash.problems.batch import CLASSES, Frames, Shape, SolvedPairs, batches, score_limit, sides_of, solve_pairs
from otdd_flash.problems.options import DistanceOptions, LabelDistance
from otdd_flash.problems.settings import Settings
from otdd_flash.problems.sides import Side, place

__all__ = [
    "CLASSES",
    "DistanceOptions",
    "Frames",
    "LabelDistance",
    "Settings",
    "Shape",
    "Side",
    "SolvedPairs",
    "batches",
    "place",
    "score_limit",
    "sides_of",
    "solve_pairs",
]
