"""Every test and doctest starts from the same seed and an empty parameter store, with Pyro's checks on."""

from collections.abc import Iterator

import pyro
import pytest


@pytest.fixture(autouse=True)
def _clean_pyro() -> Iterator[None]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled():
        yield
