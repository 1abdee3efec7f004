"""The layout of the package: imports go one way, folders keep their private names, and nothing is loaded unasked."""

import ast
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyro_gprn

pytestmark = pytest.mark.usefixtures("quick")

ROOT = Path(pyro_gprn.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")

#: A module imports from its own folder and from those that stand before it.
ORDER = [
    "pyro_state",
    "archive",
    "metrics",
    "algebra",
    "outputs",
    "network",
    "training",
    "prediction",
    "collapsed",
    "coregionalised",
    "factorised",
    "estimator",
    "baselines",
    "plots",
    "diagnostics",
    "datasets",
    "experiments",
]

#: Underscored names of other people's that there is no public way to.
NAMES_OF_OTHERS = {
    "_asdict": "documented by Python's NamedTuple",
    "_replace": "documented by Python's NamedTuple",
    "_base": "torch: what a tensor is a view of",
    "_version": "torch: how often a tensor was changed in place",
    "_buffers": "torch: the buffers of a module by name, without its children's",
    "_in_memory": "xarray: False for an array that will be read from a file when it is needed",
    "_mask": "Pyro: the mask of a masked distribution",
    "_pyro_params": "Pyro: the constrained parameters of a module",
    "_pyro_samples": "Pyro: the parameters of a module that have priors",
    "_priors": "Pyro: the priors themselves, by parameter",
    "_guides": "Pyro: the guides of the parameters that have priors",
    "_pyro_context": "Pyro: the values that parameters with priors have in the present call",
    "_pyro_get_fullname": "Pyro: the site of a parameter",
}


def folder_of(path: Path) -> str:
    """The folder of a module, or the module itself if it stands beside the folders."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> Iterator[str]:
    """Everything that a module imports of this package, such as ``algebra.linalg.along_mode``."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(ROOT.parent).parts[: -node.level]) if node.level else []
            names = [".".join([*package, *filter(None, [node.module]), alias.name]) for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("pyro_gprn.") for name in names if name.split(".")[0] == "pyro_gprn")


def home_of(name: str) -> str:
    """The folder of something imported; names of the package itself, loaded when asked for, by where they are made."""
    first = name.split(".")[0]
    return first if first in ORDER else getattr(pyro_gprn, first).__module__.split(".")[1]


def test_every_folder_has_a_place_in_the_order():
    assert {folder_of(path) for path in MODULES} == set(ORDER)


def test_a_module_imports_only_from_folders_before_its_own():
    backwards = {}
    for path in MODULES:
        own = ORDER.index(folder_of(path))
        found = [name for name in imported(path) if ORDER.index(home_of(name)) > own]
        backwards |= {name_of(path): found} if found else {}
    assert backwards == {}


@pytest.mark.parametrize(
    "name", ["estimator/fitted.py", "estimator/selection.py", "diagnostics/source.py", "diagnostics/arviz.py"]
)
def test_what_is_asked_of_every_network_is_asked_without_looking_at_which_it_is(name):
    assert [each for each in imported(ROOT / name) if each.endswith("GPRN")] == []


def test_imports_of_every_form_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "pyro_gprn")
    path = tmp_path / "pyro_gprn/outputs/module.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import pyro_gprn.plots\nfrom pyro_gprn import GPRN\nfrom .gram import Gram\nfrom ..training import fit\n"
        "def late():\n    from pyro_gprn.estimator.regressor import GPRNRegressor as R, other\nimport numpy.linalg\n"
    )
    assert sorted(imported(path)) == [
        "GPRN",
        "estimator.regressor.GPRNRegressor",
        "estimator.regressor.other",
        "outputs.gram.Gram",
        "plots",
        "training.fit",
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def defined_in(folder: str) -> set[str]:
    """Underscored names that are made in a folder: functions, classes, variables, and attributes of ``self``."""
    names = set()
    for path in (path for path in MODULES if folder_of(path) == folder):
        for node in nodes_of(path):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return {name for name in names if is_private(name)}


def read_of_others(path: Path) -> Iterator[str]:
    """Underscored names that a module reads of anything but ``self``: by import, by attribute, or by ``getattr``."""
    yield from (last for last in (name.split(".")[-1] for name in imported(path)) if is_private(last))
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            name = node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        else:
            continue
        if is_private(name):
            yield name


def test_no_module_reads_an_underscored_name_of_another_folder():
    made = {folder: defined_in(folder) for folder in ORDER}
    foreign = {name_of(path): set(read_of_others(path)) - made[folder_of(path)] for path in MODULES}
    ours = {name: names - NAMES_OF_OTHERS.keys() for name, names in foreign.items()}
    assert {name: names for name, names in ours.items() if names} == {}


def test_no_name_is_excepted_without_need():
    assert NAMES_OF_OTHERS.keys() <= {name for path in MODULES for name in read_of_others(path)}


PUBLIC = [
    "GPRN",
    "ClosedFormELBO",
    "CollapsedFit",
    "CollapsedGPRN",
    "CollapsedGuide",
    "GPRNRegressor",
    "KroneckerGuide",
    "MatrixNormal",
    "MeanFieldGuide",
    "MixtureGuide",
    "PosteriorPredictive",
    "TensorNormal",
    "compare",
    "diagnose",
    "fit_collapsed",
    "output_correlation",
    "plot_correlation",
    "plot_field",
    "plot_fit",
    "posterior_predictive",
    "sample_weights",
    "to_arviz",
]


def test_every_public_name_can_be_imported():
    assert set(PUBLIC) <= set(pyro_gprn.__all__) <= set(dir(pyro_gprn))
    for name in pyro_gprn.__all__:
        scope = {}
        exec(f"from pyro_gprn import {name}", scope)
        assert scope[name] is getattr(pyro_gprn, name)
    with pytest.raises(ImportError, match="cannot import name 'Gprn'"):
        exec("from pyro_gprn import Gprn")


def test_type_checkers_see_every_public_name():
    block = next(node for node in ast.parse((ROOT / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == {name: f"pyro_gprn.{home}" for name, home in pyro_gprn._HOME_OF.items()}
    scope = {}
    exec("from pyro_gprn import *", scope)
    assert set(pyro_gprn.__all__) == scope.keys() - {"__builtins__"} == seen.keys()


def test_a_user_of_the_pyro_models_does_not_load_what_only_others_need():
    names = "GPRN, KroneckerGuide, ClosedFormELBO, CollapsedGPRN, CollapsedGuide, fit_collapsed, posterior_predictive"
    program = f"import sys; from pyro_gprn import {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT.parent)
    loaded = set(done.stdout.split())
    assert {"pyro", "pyro_gprn.factorised.model"} <= loaded
    assert not {"sklearn", "scipy.optimize", "matplotlib", "pandas", "xarray", "arviz"} & loaded


def test_a_fit_and_a_prediction_cross_between_folders_at_most_twenty_times():
    path = ROOT.parent / "benchmarks/crossings.py"
    spec = importlib.util.spec_from_file_location("crossings", path)
    crossings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crossings)
    found = {work: crossings.crossings(visits) for work, visits in crossings.trace().items()}
    assert found.keys() == {"fit", "predict"}
    assert all(5 < count <= 20 for count in found.values()), found
