"""The page of results: tables and plots of the experiments, made from their files of results and put into a page."""

from __future__ import annotations

from pathlib import Path

from pyro_gprn.experiments.reproduction.cell import Cell
from pyro_gprn.experiments.reproduction.command import EXPERIMENTS
from pyro_gprn.experiments.results import read


def write_page(page: Path, folder: Path) -> list[str]:
    """Makes the tables and plots of a page again; its other words stay.

    The tables of an experiment, say ``table1``, stand between the lines ``<!-- table1 -->`` and
    ``<!-- end of table1 -->``. A plot is drawn into a file beside the page, and shown below the tables.

    :param page: the page, in Markdown.
    :param folder: where the files of results are, ``table1.jsonl`` and so on. An experiment without one is passed over.
    :returns: the names of the experiments whose tables were made.

    >>> import tempfile
    >>> from pyro_gprn.experiments.results import append
    >>> folder = Path(tempfile.mkdtemp())
    >>> page = folder / "page.md"
    >>> _ = page.write_text("# Results\\n\\n<!-- figure1 -->\\n<!-- end of figure1 -->\\n\\nThe end.\\n")
    >>> cell = {"data": "jura", "n_train": 249, "method": "mean-field", "n_latents": 2, "repeat": 0}
    >>> append(folder / "figure1.jsonl", {**cell, "seconds_a_step": 0.5})
    >>> write_page(page, folder)
    ['figure1']
    >>> "| jura | mean-field | 0.5 |" in page.read_text(), page.read_text()[-9:]
    (True, 'The end.\\n')
    """
    text, made = page.read_text(encoding="utf-8"), []
    for name, experiment in EXPERIMENTS.items():
        known = read(folder / f"{name}.jsonl", Cell)
        cells = experiment.grid(experiment.repeats, is_quick=False)
        results = {cell: known[cell] for cell in cells if cell in known}
        if not results:
            continue
        tables = experiment.report(results)
        if experiment.plot is not None:
            experiment.plot({cell: each for cell, each in results.items() if "error" not in each}, _plot(page, name))
            tables += f"\n\n![{name}]({_plot(page, name).name})"
        text = _replace(text, name, tables, page)
        made.append(name)
    page.write_text(text, encoding="utf-8")
    return made


def _plot(page: Path, name: str) -> Path:
    return page.with_name(f"{name}.png")


def _replace(text: str, name: str, tables: str, page: Path) -> str:
    """The text with these tables between the two lines that mark their place."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{page} must have the lines {begin} and {end}, between which the tables of {name} are put")
    return f"{before}{begin}\n\n{tables}\n\n{end}{after}"
