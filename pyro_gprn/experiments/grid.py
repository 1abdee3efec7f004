"""Runs the cells of a grid that are not in a file of results yet."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from pyro_gprn.experiments.results import Cell, append, read, versions
from pyro_gprn.training.interruption import noticed_interrupts

#: What a cell's work returns, and what is told of a result when it is there.
Work = Callable[[Any], dict[str, Any]]
Tell = Callable[[dict[str, Any]], str]


def run_missing(
    path: Path,
    cells: Sequence[Cell],
    work: Work,
    *,
    tell: Tell,
    again: bool = False,
    processes: int = 1,
    progress: bool = True,
) -> None:
    """Runs the cells that are not in the file yet, and adds the result of each to the file as soon as it is there.

    A cell that raises an error has the error as its result. Ctrl-C ends the grid, and the cell in work is lost.

    :param path: the file of results.
    :param cells: what is wanted: frozen dataclasses, all of one class.
    :param work: takes a cell and returns its result, in types that JSON knows. It runs on one thread.
    :param tell: one line about a result, printed when it is there.
    :param again: True runs the cells that are in the file, too. Their last lines count.
    :param processes: how many cells run at the same time.
    :param progress: whether to show a progress bar.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     seed: int
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> for n_cells in (2, 3):
    ...     cells = [Run(seed) for seed in range(n_cells)]
    ...     how = {"tell": lambda result: f"seed {result['seed']}: {result['square']}", "progress": False}
    ...     run_missing(path, cells, lambda cell: {"square": cell.seed**2}, **how)
    2 cells to run, 0 done before
    seed 0: 0
    seed 1: 1
    1 cells to run, 2 done before
    seed 2: 4
    """
    done = {} if again or not cells else read(path, type(cells[0]))
    missing = [cell for cell in cells if cell not in done]
    n_done = len(cells) - len(missing)
    print(f"{len(missing)} cells to run, {n_done} done before", flush=True)
    made_by = versions()
    results = Parallel(n_jobs=processes, return_as="generator_unordered")(
        delayed(run_cell)(cell, work) for cell in missing
    )
    with tqdm(total=len(cells), initial=n_done, desc="cells", disable=not progress) as bar:
        for result in results:
            append(path, {**result, "versions": made_by})
            tqdm.write(tell(result), file=sys.stdout)
            bar.update()


def run_cell(cell: Any, work: Work) -> dict[str, Any]:
    """The fields of a cell and its result. An error is part of the result.

    :param cell: a dataclass.
    :param work: takes the cell and returns its result.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     seed: int
    >>> run_cell(Run(3), lambda cell: {"quotient": 1 / 0})["error"]
    'ZeroDivisionError: division by zero'
    """
    result = asdict(cell)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with noticed_interrupts() as interruption, threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as scikit-learn's on parameters at their bounds
            result |= work(cell)
            if interruption.is_requested:  # a fit that was cut short is no result
                raise KeyboardInterrupt
    except Exception as error:
        result |= {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(limit=-3)}
    finally:
        torch.set_num_threads(threads)
    return result
