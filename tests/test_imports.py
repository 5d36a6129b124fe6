"""Imports go one way, and the library needs torch alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "otdd_flash"

# From the bottom up; a unit may import the units of lower layers and itself.
LAYERS = [
    {"torch_mode"},
    {"checks", "errors", "memory", "progress", "palette"},
    {"types", "cost"},
    {"arguments", "tensor_files", "canvas"},
    {"kernels", "data", "reference"},
    {"ops"},
    {"sinkhorn"},
    {"labels", "samples_loss"},
    {"augment"},
    {"conventions"},
    {"problems"},
    {"distance", "screening"},
    {"differentiable"},
    {"matrix", "flows"},
    {"selection"},
    {"plots"},
    {"reporting"},
    {"cli"},
]
LAYER_OF = {unit: level for level, units in enumerate(LAYERS) for unit in units}
ALLOWED_OUTSIDE = {"cli": {"torch", "hydra", "omegaconf"}, "kernels": {"torch", "triton"}, "data": {"torch", "numpy"}}
OPTIONAL = [
    "triton",
    "hydra",
    "omegaconf",
    "torchvision",
    "datasets",
    "sklearn",
    "scipy",
    "safetensors",
    "pyarrow",
    "tqdm",
]


def modules() -> list[Path]:
    """Every Python file of the package; its two symlinked folders are walked where they really are."""
    return sorted(path for folder in (PACKAGE, ROOT / "kernels", ROOT / "conf") for path in folder.rglob("*.py"))


def unit_of(path: Path) -> str:
    """The unit a file belongs to: the first name below the package."""
    inside = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.relative_to(ROOT)
    return inside.parts[0].removesuffix(".py")


def imported(tree: ast.AST, *, top_level: bool = False) -> Iterator[str]:
    """Dotted names of all absolute imports; ``top_level`` leaves out functions and TYPE_CHECKING blocks."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if top_level and (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_type_checking(node)):
            continue
        stack.extend(ast.iter_child_nodes(node))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path: Path) -> None:
    unit = unit_of(path)
    if unit in ("__init__", "conf"):
        return
    assert unit in LAYER_OF, f"{unit} has no place in the layers"
    for name in imported(ast.parse(path.read_text())):
        head, *rest = name.split(".")
        if head != "otdd_flash" or not rest or rest[0] in (unit, "__version__"):
            continue
        assert LAYER_OF.get(rest[0], 99) < LAYER_OF[unit] or (unit, rest[0]) == ("cost", "types"), (
            f"{unit} imports {name}"
        )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_optional_packages_are_imported_late(path: Path) -> None:
    unit = unit_of(path)
    tree = ast.parse(path.read_text())
    allowed = ALLOWED_OUTSIDE.get(unit, {"torch"}) | {"otdd_flash"} | set(sys.stdlib_module_names)
    late = {name.split(".")[0] for name in imported(tree, top_level=True)}
    assert late <= allowed, f"{unit} imports {sorted(late - allowed)} when it is itself imported"
    if unit != "cli":
        anywhere = {name.split(".")[0] for name in imported(tree)}
        assert not anywhere & {"hydra", "omegaconf"}, "hydra is the command line's alone"
    if unit == "kernels":
        assert not any(name.startswith("otdd_flash") and ".kernels" not in name for name in imported(tree))


def test_the_walk_sees_imports() -> None:
    tree = ast.parse("import a.b\nif TYPE_CHECKING:\n    import c\ndef f():\n    from d import e\n")
    assert set(imported(tree)) == {"a.b", "c", "d.e"}
    assert set(imported(tree, top_level=True)) == {"a.b"}


# Packages are absent, as if never installed: every finder says that it does not know them.
BLOCKER = f"""
import sys, time
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {OPTIONAL!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def run_python(code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, cwd=ROOT)


def test_import_is_quick_and_needs_torch_alone() -> None:
    code = BLOCKER + "start = time.perf_counter(); import otdd_flash; print(time.perf_counter() - start)"
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 3.0


def test_every_export_loads_with_torch_alone() -> None:
    code = BLOCKER + "import otdd_flash\nfor name in otdd_flash.__all__: getattr(otdd_flash, name)\nprint('loaded')"
    process = run_python(code)
    assert process.stdout.strip() == "loaded", process.stderr


def test_a_distance_needs_torch_alone() -> None:
    code = (
        BLOCKER
        + """
import torch, otdd_flash
x = torch.eye(3, dtype=torch.float64)
a = otdd_flash.from_arrays(x[:1], [0])
b = otdd_flash.from_arrays(3 * x[1:2], ["one"])
print(otdd_flash.dataset_distance(a, b, label_weight=0.0, epsilon=0.1).value)
"""
    )
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) == pytest.approx(10.0)


def test_missing_hydra_says_how_to_get_it() -> None:
    """C26."""
    code = BLOCKER + "from otdd_flash.cli.main import main; sys.exit(main(['distance']))"
    process = run_python(code)
    assert process.returncode == 1
    assert (
        process.stderr
        == "otdd distance: error: otdd distance needs hydra-core, which is not installed: pip install hydra-core\n"
    )
    assert run_python(BLOCKER + "from otdd_flash.cli.main import main; sys.exit(main(['--help']))").returncode == 0


def test_kernels_is_no_package_of_its_own() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (PACKAGE / "kernels").is_symlink()
    assert (PACKAGE / "conf").is_symlink()
