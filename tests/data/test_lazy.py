from __future__ import annotations

import subprocess
import sys

OPTIONAL = ("torchvision", "datasets", "pandas", "pyarrow", "sklearn", "scipy", "PIL", "safetensors", "timm")


def test_optional_packages_are_not_imported_before_they_are_needed():
    code = (
        "import sys, numpy as np, otdd_flash as o, otdd_flash.data.features\n"
        "from torch.utils.data import TensorDataset\nimport torch\n"
        "o.from_arrays(np.eye(3), [0, 1, 1]); o.from_torch(TensorDataset(torch.eye(3), torch.arange(3)))\n"
        f"print([name for name in {OPTIONAL!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_what_is_missing_says_how_to_get_it():
    code = (
        "import sys\nfor name in ('sklearn', 'torchvision'): sys.modules[name] = None\n"
        "import otdd_flash as o\n"
        "try: o.load('iris')\nexcept ImportError as error: print(error)\n"
        "try: o.load('cifar100')\nexcept FileNotFoundError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install scikit-learn" in run.stdout
    assert "pip install torchvision" in run.stdout
