"""Notebooks run from top to bottom, are stored as their sources say, and import from public places only."""

import ast
import re
import runpy
from importlib import import_module
from pathlib import Path

import nbformat
import pytest

BUILD = runpy.run_path(str(Path(__file__).parents[1] / "notebooks/build.py"), run_name="build")
SOURCES = BUILD["find_sources"]()
README = Path(__file__).parents[1] / "README.md"
#: Folders that a notebook's reader does not have.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(home|Users|root|tmp|var|private|opt|usr|mnt|work)/|[A-Z]:\\|site-packages")
TEXTS = ("text/plain", "text/html", "text/markdown")

#: Notebooks that take long even when they are small: many fits, NUTS, a cluster of processes, thousands of rows. (What
#: the first one does, the README's example and the demo do, too.)
LONG = (
    "01_quickstart",
    "03_variants",
    "04_diagnostics",
    "05_million_outputs",
    "06_missing_data",
    "07_methods",
    "08_beyond_memory",
    "09_many_rows",
)

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Kernels start small, with neither data sets nor a way to the internet."""
    monkeypatch.setenv("PYRO_GPRN_SMALL", "1")
    monkeypatch.delenv("PYRO_GPRN_CAVITY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures_of(notebook):
    return [output for output in outputs_of(notebook) if "image/png" in output.get("data", {})]


@pytest.mark.parametrize(
    "source",
    [pytest.param(each, marks=[pytest.mark.slow] if each.stem in LONG else [], id=each.stem) for each in SOURCES],
)
def test_a_notebook_runs(source, tmp_path, offline):
    assert pictures_of(BUILD["execute"](BUILD["read_source"](source), tmp_path))


def test_the_notebook_on_missing_data_runs_on_the_published_data(tmp_path, offline, published_files):
    (source,) = (source for source in SOURCES if source.stem.endswith("missing_data"))
    BUILD["execute"](BUILD["read_source"](source), tmp_path)


@each_notebook
def test_a_stored_notebook_is_up_to_date(source):
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(stored)
    cells, expected = (
        [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]
        for notebook in (stored, BUILD["read_source"](source))
    )
    assert cells == expected, f"python notebooks/build.py {source.stem} brings it up to date"
    assert all(cell.execution_count for cell in stored.cells if cell.cell_type == "code")


@each_notebook
def test_a_stored_notebook_holds_pictures_and_neither_errors_nor_paths(source):
    path = source.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
    assert pictures_of(notebook)
    for output in outputs_of(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text
        shown = output.get("text", "") + "".join(str(output.get("data", {}).get(kind, "")) for kind in TEXTS)
        assert not MACHINE_PATH.search(shown), shown
    assert path.stat().st_size < 1e6


def test_every_notebook_has_a_source():
    folder = Path(BUILD["FOLDER"])
    assert [path.stem for path in sorted(folder.glob("*.ipynb"))] == [source.stem for source in SOURCES]


def private_imports(code):
    """What code imports of the package from elsewhere than a public place, or from there but not as a public name.

    Public places are the package itself and what stands directly in it, ``pyro_gprn.metrics`` or a folder.
    """
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            places = {node.module: [alias.name for alias in node.names]}
        elif isinstance(node, ast.Import):
            places = {alias.name: [] for alias in node.names}
        else:
            continue
        for place, names in places.items():
            if place.split(".")[0] == "pyro_gprn":
                found += [f"{place} {name}".strip() for name in names or [""] if not is_public(place, name)]
    return found


def is_public(place, name):
    if place.count(".") > 1:
        return False
    module = import_module(place)
    return not name or name in getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])


@pytest.mark.parametrize("document", [*SOURCES, README], ids=lambda document: document.stem)
def test_imports_are_from_public_places_only(document):
    text = document.read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if document == README else [text]
    assert any("pyro_gprn" in code for code in codes)
    assert [name for code in codes for name in private_imports(code)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from pyro_gprn.outputs.gram import gram_matrix", ["pyro_gprn.outputs.gram gram_matrix"]),
        ("import torch, pyro_gprn.outputs.gram", ["pyro_gprn.outputs.gram"]),
        ("from pyro_gprn.diagnostics import arviz_versions", ["pyro_gprn.diagnostics arviz_versions"]),
        ("def late():\n    from pyro_gprn import _HOMES, GPRN", ["pyro_gprn _HOMES"]),
        ("import pyro_gprn\nfrom pyro_gprn.metrics import nrmse\nfrom numpy.linalg import norm", []),
    ],
)
def test_imports_from_inside_a_folder_are_noticed(code, found):
    assert private_imports(code) == found
