"""GPyTorch and BoTorch, which only some methods need: the extra ``pyro-gprn[baselines]``."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """A module of GPyTorch or BoTorch; without them an error that names the extra to install.

    Importing BoTorch turns approximate solves off in all of GPyTorch, which makes no difference below 800 rows.

    :param name: of the module, such as ``"gpytorch.kernels"``.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # theirs, of torch.jit
            import_module("botorch")
            return import_module(name)
    except ImportError as missing:
        raise ImportError(
            "ReducedGP and HOGP need GPyTorch and BoTorch: pip install 'pyro-gprn[baselines]'"
        ) from missing
