import numpy as np
import pytest

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
