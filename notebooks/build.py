"""Makes the notebooks (.ipynb, with their outputs) from their sources (.py, jupytext's percent format).

python notebooks/build.py          # all
python notebooks/build.py 01 06    # those whose names begin so
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
TIMEOUT = 3600  # seconds that one cell may take


def find_sources() -> list[Path]:
    """The sources of all notebooks, in order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def read_source(source: Path) -> NotebookNode:
    """A notebook without outputs; the same source gives the same notebook, to the last cell's id."""
    notebook = jupytext.read(source, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    }
    return notebook


def execute(notebook: NotebookNode, folder: str | Path) -> NotebookNode:
    """Runs a notebook, in place, from top to bottom in a new kernel whose working directory is ``folder``."""
    client = NotebookClient(
        notebook, timeout=TIMEOUT, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    # Pyro's progress bars ask for widgets, which a notebook that is run by a script cannot show.
    return client.execute(env=os.environ | {"PYTHONWARNINGS": "ignore:IProgress not found"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""], help="beginnings of names; by default all notebooks")
    names = tuple(parser.parse_args().names)
    for source in find_sources():
        if source.name.startswith(names):
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                notebook = execute(read_source(source), folder)
            target = source.with_suffix(".ipynb")
            nbformat.write(notebook, target)
            size = target.stat().st_size / 1e3
            print(f"{target.name}: {time.perf_counter() - start:.0f} s, {size:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
