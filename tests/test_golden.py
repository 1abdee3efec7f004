"""Results at a given seed, and files, as they were: a reference made once is met again."""

from pathlib import Path

import numpy as np
import pytest
from golden import make

from pyro_gprn import GPRNRegressor

FOLDER = Path(__file__).parent / "golden"
REFERENCE = dict(np.load(FOLDER / "reference.npz"))


@pytest.mark.parametrize("case", make.CASES)
def test_results_are_those_of_the_reference(case):
    found = make.CASES[case]()
    assert {f"{case}.{name}" for name in found} == {name for name in REFERENCE if name.startswith(f"{case}.")}
    for name, values in found.items():
        np.testing.assert_allclose(values, REFERENCE[f"{case}.{name}"], rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(("file", "case"), [("version_1", "holes"), ("version_1_kronecker", "kronecker")])
def test_a_file_of_the_first_version_predicts_as_it_did(file, case):
    r = GPRNRegressor.load(FOLDER / f"{file}.gprn")
    for name, values in make.predictions(r).items():
        np.testing.assert_allclose(values, REFERENCE[f"{case}.{name}"], rtol=1e-8, atol=1e-8, err_msg=name)
