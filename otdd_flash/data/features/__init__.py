"""Features of two data sets made comparable: embedders and scaling."""

from otdd_flash.data.features.embedders import Batching, Embedder, Pca, resolve_embedder
from otdd_flash.data.features.modules import (
    ModuleEmbedder,
    PicturePreprocess,
    timm_embedder,
    torchvision_embedder,
)
from otdd_flash.data.features.pipeline import FeatureRecord, Features
from otdd_flash.data.features.scaling import Standardizer
from otdd_flash.data.features.sentences import SentenceEmbedder
from otdd_flash.data.features.tables import TableEmbedder, table_pair, table_pipeline
from otdd_flash.data.features.transformers import TransformerEmbedder

__all__ = [
    "Batching",
    "Embedder",
    "FeatureRecord",
    "Features",
    "ModuleEmbedder",
    "Pca",
    "PicturePreprocess",
    "SentenceEmbedder",
    "Standardizer",
    "TableEmbedder",
    "TransformerEmbedder",
    "resolve_embedder",
    "table_pair",
    "table_pipeline",
    "timm_embedder",
    "torchvision_embedder",
]
