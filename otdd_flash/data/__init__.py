"""Data in: loaders by name, adapters for arrays and libraries, subsampling."""

from otdd_flash.data.arrays import from_arrays
from otdd_flash.data.frames import from_dataframe
from otdd_flash.data.huggingface import from_huggingface
from otdd_flash.data.registry import load, sources
from otdd_flash.data.rows import subsample
from otdd_flash.data.torch_adapter import from_torch
from otdd_flash.data.unembedded import TableDataset, TextDataset

__all__ = [
    "TableDataset",
    "TextDataset",
    "from_arrays",
    "from_dataframe",
    "from_huggingface",
    "from_torch",
    "load",
    "sources",
    "subsample",
]
