"""Every test and doctest starts from the same seed and an empty parameter store, with Pyro's checks on."""

import contextlib
import importlib
import signal
import warnings
from collections.abc import Iterator

import pyro
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Makes the tests the same however they are started.

    ArviZ writes down the day on which it is loaded first, and fails where two processes do so at the same time. And a
    shell starts what runs in the background with Ctrl-C ignored, which the tests of interruptions send to themselves.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # before there are other processes
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("arviz")


@pytest.fixture(autouse=True)
def _clean_pyro() -> Iterator[None]:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled():
        yield
