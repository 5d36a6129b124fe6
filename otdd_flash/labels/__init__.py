"""Class-to-class distances: moments, Bures, Sinkhorn, names, precomputed tables, and their cache."""

from otdd_flash.labels.api import METHODS, label_distances
from otdd_flash.labels.class_sinkhorn import LabelSinkhorn
from otdd_flash.labels.names import ClassNames
from otdd_flash.labels.samples import ClassSample, check_pair, class_samples
from otdd_flash.labels.tables import LabelDistances

__all__ = [
    "METHODS",
    "ClassNames",
    "ClassSample",
    "LabelDistances",
    "LabelSinkhorn",
    "check_pair",
    "class_samples",
    "label_distances",
]
