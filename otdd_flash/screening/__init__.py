"""The fast tier: cheap distances for thousands of data sets, and the cut between them and the full distance."""

from otdd_flash.screening.classes import moment_distance, moment_distances
from otdd_flash.screening.cut import Screen
from otdd_flash.screening.refine import Screened, screen_then_refine
from otdd_flash.screening.sliced import Slices, sliced_distance
from otdd_flash.screening.tables import screening_matrix

__all__ = [
    "Screen",
    "Screened",
    "Slices",
    "moment_distance",
    "moment_distances",
    "screen_then_refine",
    "screening_matrix",
    "sliced_distance",
]
