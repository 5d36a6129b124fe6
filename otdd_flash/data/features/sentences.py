"""Sentence embedders for text sets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otdd_flash.data.features.embedders import Batching, Embedder, content_key
from otdd_flash.data.unembedded import TextDataset
from otdd_flash.errors import optional_import
from otdd_flash.torch_mode import plain_torch_methods


@plain_torch_methods
class SentenceEmbedder(Embedder):
    """A sentence-transformers model.

    Args:
        model: name, folder, or a loaded ``SentenceTransformer``.
        name: for records; default the last part of ``model``.

    Raises:
        FileNotFoundError: a model that is neither a folder nor cached and cannot be downloaded.
    """

    texts = True

    def __init__(self, model: Any, *, name: str | None = None) -> None:
        if isinstance(model, str):
            library = optional_import("sentence_transformers", needed_for="text embedding", extra="text")
            try:
                loaded = library.SentenceTransformer(model, device="cpu")
            except OSError as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise FileNotFoundError(
                    f"the sentence model {model!r} is not cached and could not be downloaded ({reason}); give a folder"
                ) from error
            self.name = name or f"sentence-transformers:{model.rstrip('/').rpartition('/')[2]}"
        else:
            loaded = model
            self.name = name or f"sentence-transformers:{type(model).__name__}"
        self.model = loaded
        self.key = content_key(loaded.state_dict().items(), repr(loaded), str(loaded.max_seq_length))

    def embed(self, dataset: TextDataset, batching: Batching) -> Tensor:
        """``(n, k)`` float32 sentence vectors."""
        texts = list(dataset.texts)

        def encode(part: slice) -> Tensor:
            vectors = self.model.encode(
                texts[part],
                batch_size=batching.size,
                show_progress_bar=False,
                convert_to_tensor=True,
                device=None if batching.device is None else str(batching.device),
            )
            return vectors.detach().float()

        # batches of similar length pad less, so the texts are sorted by it and the vectors put back
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        texts = [texts[i] for i in order]
        vectors = batching.run(len(texts), encode, self.name)
        back = torch.empty(len(order), dtype=torch.int64)
        back[torch.tensor(order)] = torch.arange(len(order))
        return vectors[back].clone()
