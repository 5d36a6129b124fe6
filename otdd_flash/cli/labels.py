"""The label part of a config as arguments of the library."""

from __future__ import annotations

from typing import Any

from otdd_flash.cli.config import LabelsConfig


def label_arguments(config: LabelsConfig) -> dict[str, Any]:
    """``label_distance``, ``label_epsilon`` and ``label_weight`` of :func:`otdd_flash.dataset_distance`.

    Raises:
        ValueError: settings of class names with a label distance that does not look at them.
    """
    distance: Any = config.distance
    if distance == "names":
        from otdd_flash.labels import ClassNames

        distance = ClassNames(config.embedder, config.scale)
    else:
        plain = LabelsConfig()
        for key in ("embedder", "scale"):
            if getattr(config, key) != getattr(plain, key):
                raise ValueError(
                    f"labels.{key}={getattr(config, key)} is for labels=names, got labels.distance={config.distance}"
                )
    return {"label_distance": distance, "label_epsilon": config.epsilon, "label_weight": config.weight}
