import os
import signal
import threading
import time

import numpy as np
import pytest

from pyro_gprn.datasets.simulated.batches import simulate_missing
from pyro_gprn.datasets.simulated.store import RunStore


def test_a_store_goes_on_where_it_stopped(tmp_path):
    first = RunStore(tmp_path / "runs", (4, 2, 3), {"seed": 0})
    assert first.missing() == [0, 1, 2, 3]
    first.write(2, np.full((2, 3), 7.0))
    again = RunStore(tmp_path / "runs", (4, 2, 3), {"seed": 0})
    assert again.missing() == [0, 1, 3]
    assert again.runs.dtype == np.float32
    np.testing.assert_array_equal(again.runs[2], np.full((2, 3), 7.0))


@pytest.mark.parametrize(("shape", "seed"), [((4, 2), 1), ((5, 2), 0)])
def test_a_store_of_other_settings_is_refused(tmp_path, shape, seed):
    RunStore(tmp_path, (4, 2), {"seed": 0})
    with pytest.raises(ValueError, match="other settings"):
        RunStore(tmp_path, shape, {"seed": seed})


def test_a_store_that_was_interrupted_while_being_made_is_made_again(tmp_path):
    RunStore(tmp_path, (4, 2), {"seed": 0})
    (tmp_path / "settings.json").unlink()
    assert RunStore(tmp_path, (3, 2), {"seed": 1}).missing() == [0, 1, 2]


def squares(runs):
    return np.array([[run, run**2] for run in runs])


@pytest.mark.parametrize("in_folder", [True, False])
def test_only_the_missing_runs_are_made(tmp_path, in_folder):
    store = RunStore(tmp_path if in_folder else None, (5, 2), {})
    store.write(3, np.array([7.0, 7.0]))
    asked = []
    simulate_missing(store, lambda runs: asked.append(runs) or squares(runs), name="squares", batch=3, progress=False)
    assert asked == [[0, 1, 2], [4]]
    assert store.missing() == []
    np.testing.assert_array_equal(store.runs, [[0, 0], [1, 1], [2, 4], [7, 7], [4, 16]])


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process alone")
def test_an_interruption_of_the_caller_alone_stops_all_processes_and_keeps_what_was_finished(tmp_path):
    def simulate(runs):  # the first batch is finished at once, the others would take ten minutes
        if 0 not in runs:
            (tmp_path / f"worker {os.getpid()}").touch()
            time.sleep(600)
        return np.ones((len(runs), 2))

    def workers():
        return [int(path.name.split()[1]) for path in tmp_path.glob("worker *")]

    def interrupt():
        wait_until(lambda: over.is_set() or (store.missing() == [2, 3, 4, 5, 6, 7] and len(workers()) == 2))
        if not over.is_set():
            interrupted_at.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    store, over, interrupted_at = RunStore(tmp_path / "runs", (8, 2), {}), threading.Event(), []
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate_missing(store, simulate, name="slow", batch=2, processes=2, progress=False)
    finally:
        over.set()
        watcher.join()
    assert time.monotonic() - interrupted_at[0] < 10
    assert RunStore(tmp_path / "runs", (8, 2), {}).missing() == [2, 3, 4, 5, 6, 7]
    assert len(workers()) == 2
    assert wait_until(lambda: not any(map(is_alive, workers())), seconds=10)


def test_a_single_batch_needs_no_second_process():
    store, asked = RunStore(None, (3, 2), {}), []
    simulate_missing(
        store, lambda runs: asked.append(runs) or squares(runs), name="squares", batch=3, processes=4, progress=False
    )
    assert asked == [[0, 1, 2]]  # seen only if it was made in this process
    np.testing.assert_array_equal(store.runs, squares([0, 1, 2]))
