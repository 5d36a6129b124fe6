"""What a mutated call puts in the place of a valid argument."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash import DistanceOptions, LabeledDataset, from_arrays
from otdd_flash.data import TextDataset


class _Anything:
    """A class that is called with anything, where one of its instances is due."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass


# by name: what is put there whatever stood there before
ANYTHING: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "empty text": lambda: "",
    "a word": lambda: "abc",
    "text False": lambda: "False",
    "text 1": lambda: "1",
    "zero byte": lambda: "a\0b",
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "minus inf": lambda: float("-inf"),
    "minus one": lambda: -1,
    "minus half": lambda: -0.5,
    "zero": lambda: 0,
    "zero float": lambda: 0.0,
    "half": lambda: 0.5,
    "one and a half": lambda: 1.5,
    "tiny": lambda: 5e-324,
    "huge": lambda: 1e308,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "-2**63": lambda: -(2**63),
    "numpy float": lambda: np.float64(0.5),
    "numpy float32": lambda: np.float32(0.5),
    "numpy int": lambda: np.int64(2),
    "numpy bool": lambda: np.bool_(True),
    "numpy nan": lambda: np.float64("nan"),
    "numpy row": lambda: np.arange(3.0),
    "numpy table": lambda: np.ones((3, 2)),
    "numpy of no dimension": lambda: np.array(0.5),
    "numpy objects": lambda: np.array([None, "a", 1], dtype=object),
    "tensor number": lambda: torch.tensor(0.5),
    "tensor row": lambda: torch.arange(3.0),
    "tensor table": lambda: torch.ones(3, 2),
    "empty tensor": lambda: torch.empty(0),
    "empty table": lambda: torch.empty(0, 2),
    "meta tensor": lambda: torch.empty(12, 2, device="meta"),
    "quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(12, 2), 0.1, 0, torch.quint8),
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "complex tensor": lambda: torch.ones(12, 2, dtype=torch.complex64),
    "complex": lambda: 1 + 2j,
    "bytes": lambda: b"abc",
    "path": lambda: Path("abc"),
    "set": lambda: {1, 2},
    "dictionary": lambda: {"tol": 1e-3},
    "empty dictionary": dict,
    "empty list": list,
    "list": lambda: [1, 2],
    "list of text": lambda: ["a", "b"],
    "list of none": lambda: [None],
    "ragged list": lambda: [[1.0, 2.0], [3.0]],
    "tuple": lambda: (0, 1),
    "empty tuple": tuple,
    "object": object,
    "class": lambda: _Anything,
    "function": lambda: lambda *arguments: None,
    "generator": lambda: (i for i in range(3)),
    "range": lambda: range(3),
    "decimal": lambda: Decimal("0.5"),
    "fraction": lambda: Fraction(1, 2),
    "slice": lambda: slice(None),
    "dtype": lambda: torch.float32,
    "device cpu": lambda: torch.device("cpu"),
    "device cuda": lambda: "cuda",
    "device meta": lambda: "meta",
    "options": DistanceOptions,
    "small set": lambda: from_arrays([[0.0, 1.0], [2.0, 3.0]], [0, 1]),
    "wide set": lambda: from_arrays(np.ones((4, 7)), [0, 1, 0, 1]),
    "texts": lambda: TextDataset(("a", "b"), torch.tensor([0, 1]), ("x", "y")),
}


def _double(valid: Tensor) -> Tensor:
    return valid.detach().to(torch.float64)


# by name: what is made of a valid tensor
OF_TENSOR: dict[str, Callable[[Tensor], Any]] = {
    "as list": lambda t: t.tolist(),
    "as numpy": lambda t: t.detach().numpy(),
    "first row": lambda t: t[:1],
    "a number of it": lambda t: t.flatten()[0],
    "no rows": lambda t: t[:0],
    "one row less": lambda t: t[:-1],
    "further axis": lambda t: t[None],
    "one column": lambda t: t[..., :1],
    "transposed": lambda t: t.T if t.dim() == 2 else t[:, None].T,
    "flat": lambda t: t.flatten(),
    "half precision": lambda t: t.to(torch.float16),
    "bfloat16": lambda t: t.to(torch.bfloat16),
    "integers": lambda t: t.to(torch.int64),
    "unsigned": lambda t: t.abs().to(torch.uint8),
    "bools": lambda t: t.to(torch.bool),
    "complex of it": lambda t: t.to(torch.complex128),
    "with nan": lambda t: _double(t).index_fill(0, torch.tensor([0]), float("nan")),
    "with inf": lambda t: _double(t).index_fill(0, torch.tensor([0]), float("inf")),
    "negative": lambda t: -t - 1,
    "all zero": torch.zeros_like,
    "beyond squares": lambda t: _double(t) * 1e200,
    "tiny of it": lambda t: _double(t) * 1e-300,
    "on meta": lambda t: t.to("meta"),
    "sparse of it": lambda t: t.to_sparse(),
    "quantised of it": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8),
    "with gradient": lambda t: _double(t).requires_grad_(),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
}

# by name: what is made of a valid data set
OF_SET: dict[str, Callable[[LabeledDataset], Any]] = {
    "its features": lambda s: s.x,
    "pair": lambda s: (s.x, s.y),
    "list of it": lambda s: [s],
    "one sample": lambda s: s.subset([0]),
    "one class": lambda s: s.subset((s.y == 0).nonzero()[:, 0]),
    "half precision of it": lambda s: from_arrays(s.x.half(), s.y),
    "copies": lambda s: s.subset([0] * 5),
    "far away": lambda s: from_arrays(s.x.double() + 1e12, s.y),
    "large": lambda s: from_arrays(s.x.double() * 1e100, s.y),
    "weighted": lambda s: from_arrays(s.x, s.y, weights=torch.arange(1.0, 1 + len(s))),
    "with gradient of it": lambda s: from_arrays(s.x.double().clone().requires_grad_(), s.y),
}


def names_for(valid: Any) -> list[str]:
    """The names of all mutations of a valid argument."""
    own = OF_TENSOR if isinstance(valid, Tensor) else OF_SET if isinstance(valid, LabeledDataset) else {}
    return [*ANYTHING, *own]


def mutated(name: str, valid: Any) -> Any:
    """The mutation ``name`` of a valid argument."""
    if name in ANYTHING:
        return ANYTHING[name]()
    return (OF_TENSOR if isinstance(valid, Tensor) else OF_SET)[name](valid)
