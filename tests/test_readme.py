"""What the README shows runs as it stands, and what the documents point to is there."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
#: A file of the package, of the tests or of the benchmarks, or a folder of the package, as documents name it.
NAMED = re.compile(
    r"`((?:pyro_gprn/|tests/|benchmarks/|docs/|notebooks/)?(?:[a-z_]+/)*[a-z_0-9]+\.(?:py|md)|[a-z_]+/)`"
)


def test_the_readme_example_runs(tmp_path, monkeypatch):
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(example.splitlines()) <= 20
    exec(compile(example, "README.md", "exec"), {})
    assert list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_what_a_document_links_to_is_there(document):
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []
    assert links or document != README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_the_files_that_a_document_names_are_there(document):
    named = NAMED.findall(document.read_text(encoding="utf-8"))
    folders = [ROOT, ROOT / "pyro_gprn", *(ROOT / "pyro_gprn").iterdir()]
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []
    assert named or document.stem not in ("CONTRIBUTING", "paper", "training", "calibration")
