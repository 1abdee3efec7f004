"""Methods that are networks of a special kind: their fits are records of networks, which can do the rest."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pyro.contrib.gp.kernels import Kernel

from pyro_gprn.collapsed.kernel_choice import KernelChoice, choose_kernel
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.outputs.gram import OutputStatistics


def choose(
    kernel: Kernel | str, X: torch.Tensor, known: OutputStatistics, *, own_kernels: bool = False
) -> tuple[Kernel | str, KernelChoice]:
    """A kernel that may be changed, and how it was chosen, for ``"auto"`` by the evidence of independent GPs."""
    if isinstance(kernel, str) and kernel == "auto":
        choice = choose_kernel(X, known, own_kernels=own_kernels)
        return str(choice.name), choice
    return copy.deepcopy(kernel), KernelChoice()


def record(
    data: TrainingData,
    model: CollapsedGPRN,
    posterior: Any,
    bound: float,
    *,
    seed: int,
    choice: KernelChoice,
    scales: bool,
) -> FittedNetwork:
    """The record of a fit.

    :param posterior: of the functions: a guide or draws.
    :param bound: what the fit reached.
    :param seed: of the draws over which predictions are averaged.
    :param choice: of the kernel.
    :param scales: whether each output has a scale of its own.
    """
    return FittedNetwork.of(
        data,
        model=model,
        guide=posterior,
        kernels={},
        seed=seed,
        runs=[{"bound": bound}],
        bound=bound,
        losses=torch.empty(0),
        kernel_evidence=choice.evidence,
        fills_holes=False,  # a baseline is what its name says
        scales=scales,
    )
