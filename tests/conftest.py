"""Tests never read data sets from the user's folder or cache, and never download them from the internet."""

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from quick import quick_starts
from website import Website

from pyro_gprn.datasets.published import fetch

#: The folder in which the published files may be: the one that the user names, or one beside the project.
_FOLDER = Path(os.environ.get("PYRO_GPRN_DATA") or Path(__file__).parents[1].parent / "shared/data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test."""
    monkeypatch.delenv("PYRO_GPRN_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "RETRIES", 0)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name, *rest: str(tmp_path / "cache" / name))
    return tmp_path / "cache/pyro-gprn"


@pytest.fixture
def website(tmp_path: Path) -> Iterator[Website]:
    """A web server for one test."""
    (tmp_path / "served").mkdir()
    site = Website(tmp_path / "served")
    yield site
    site.close()


@pytest.fixture
def published_files(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the published files, from which the loaders then read. Without it the test is skipped."""
    if not (_FOLDER / "jura/X.txt").exists():
        pytest.skip("the published files are not on this machine: set PYRO_GPRN_DATA to run this test")
    monkeypatch.setenv("PYRO_GPRN_DATA", str(_FOLDER))
    return _FOLDER


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """For a module of tests that ask how fits behave, not how good they are: their starts are found in no time."""
    with quick_starts():
        yield
