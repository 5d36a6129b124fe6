"""Distances between many labelled data sets: a matrix with certificates, computed in parallel, shards and restarts."""

from otdd_flash.matrix.api import collect, pairwise
from otdd_flash.matrix.result import DistanceMatrix, Failure
from otdd_flash.matrix.sources import SetSource

__all__ = ["DistanceMatrix", "Failure", "SetSource", "collect", "pairwise"]
