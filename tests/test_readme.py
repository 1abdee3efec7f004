"""What the README shows runs as it stands."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_example_runs(tmp_path, monkeypatch):
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(example.splitlines()) <= 20
    exec(compile(example, "README.md", "exec"), {})
    assert list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text(encoding="utf-8")))
def test_what_the_readme_links_to_is_there(path):
    assert (README.parent / path).exists()
