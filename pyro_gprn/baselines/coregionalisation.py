"""The linear model of coregionalisation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from pyro.contrib.gp.kernels import Kernel

from pyro_gprn.baselines.base import Baseline
from pyro_gprn.baselines.networks import choose, record
from pyro_gprn.collapsed import CollapsedGPRN, fit_collapsed
from pyro_gprn.collapsed.independent import fit_independent, read_effective_outputs
from pyro_gprn.collapsed.training import STEPS
from pyro_gprn.estimator.checks import check_count, check_truth
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.scaling import Standardize

#: From where training starts: the functions carry the signal, with little noise of their own or much.
STARTS = ("functions", "rough functions")


class LMC(Baseline):
    """Linear model of coregionalisation: each output is a fixed combination of K functions, the same at all inputs.

    ``y_d(x) = Σ_k a_kd f_k(x) + noise``. The functions f_k are Gaussian processes that share one kernel. The loadings
    a_kd are Gaussian and integrated out, so that a training step costs the same whatever the number of outputs: it is
    the network of :class:`~pyro_gprn.GPRNRegressor` with constant weights. NaN in Y is a missing output.

    :param n_latents: K, how many functions.
    :param kernel: of the functions: words such as ``"matern52"`` or a Pyro kernel. ``"auto"`` takes the kernel that has
        the highest evidence for independent GPs.
    :param effective_outputs: as for :class:`~pyro_gprn.GPRNRegressor`.
    :param output_scales: True gives every output a scale of its own, as :class:`~pyro_gprn.GPRNRegressor` does.
    :param steps: at most this many training steps; fewer when the bound has settled.
    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`.
    :param seed: seed of all draws, in training and in prediction; None takes a seed from torch.
    :param device: torch's device; by default the CPU.
    :param progress: whether to show a progress bar with the bound.

    After fitting, ``fitted_`` is the record of the fit, with the Pyro ``model`` and its ``guide``.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> Y = np.hstack([np.sin(6 * X), np.cos(6 * X)]) @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]])
    >>> mean, std = LMC(2, steps=50, seed=0, progress=False).fit(X, Y).predict(X[:4] + 0.02, return_std=True)
    >>> mean.shape, std.shape
    ((4, 3), (4, 3))
    """

    fitted_: FittedNetwork

    def __init__(
        self,
        n_latents: int = 5,
        *,
        kernel: Kernel | str = "auto",
        effective_outputs: float | Literal["auto"] | None = "auto",
        output_scales: bool = False,
        steps: int = STEPS,
        output_shape: int | Sequence[int] | None = None,
        standardize: Standardize = True,
        seed: int | None = None,
        device: str | torch.device | None = None,
        progress: bool = True,
    ) -> None:
        self.n_latents = n_latents
        self.kernel = kernel
        self.effective_outputs = effective_outputs
        self.output_scales = output_scales
        self.steps = steps
        self.output_shape = output_shape
        self.standardize = standardize
        self.seed = seed
        self.device = device
        self.progress = progress

    def _check_settings(self) -> None:
        check_count("n_latents", self.n_latents)
        check_count("steps", self.steps)
        check_truth("output_scales", self.output_scales)

    def _train(self, data: TrainingData, seed: int) -> FittedNetwork:
        kernel, choice = choose(self.kernel, data.X, data.known)
        effective: float | Literal["auto"] | None = self.effective_outputs
        shape = data.known.source.shape[1:]
        if effective == "auto":  # constant weights cannot tell: independent GPs do
            gps = CollapsedGPRN(data.X, shape, 1, kernel_w=copy.deepcopy(kernel))
            gps.load_state_dict(choice.states.get(str(choice.name), {}), strict=False)
            fit_independent(gps, data.known, from_here=bool(choice.states))
            effective = read_effective_outputs(gps, data.known)
        model = CollapsedGPRN(
            data.X, shape, self.n_latents, kernel_f=kernel, kernel_w="constant", effective_outputs=effective
        )
        fit = fit_collapsed(model, data.known, starts=STARTS, steps=self.steps, seed=seed, progress=self.progress)
        return record(data, model, fit.guide, fit.bound, seed=seed, choice=choice, scales=bool(self.output_scales))
