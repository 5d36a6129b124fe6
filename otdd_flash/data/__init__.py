"""Data in: loaders by name, adapters for arrays and libraries, subsampling."""

from otdd_flash.data.arrays import from_arrays
from otdd_flash.data.registry import load, sources
from otdd_flash.data.rows import subsample

__all__ = ["from_arrays", "load", "sources", "subsample"]
