"""Independent GPs that share one kernel, or have one each: the baseline to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from pyro.contrib.gp.kernels import Constant, Kernel
from torch import Tensor

from pyro_gprn.baselines.base import Baseline
from pyro_gprn.baselines.networks import choose, record
from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.kernel_choice import KernelChoice
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.estimator.checks import check_truth
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.outputs.gram import OutputStatistics


class IndependentGP(Baseline):
    """Gaussian process regression of each output on its own, with one kernel for all outputs or with one each.

    The hyperparameters maximise the exact evidence. With one kernel for all, it depends on the outputs by their Gram
    matrix alone: the fit makes one pass over Y, and its further cost is the same for ten outputs and for a million. NaN
    in Y is a missing output.

    :param kernel: words such as ``"matern52"`` or ``"rbf + periodic[0]"`` (one length-scale for each input column), or
        a Pyro kernel. ``"auto"`` takes the one out of ``"rbf"``, ``"matern52"``, ``"matern32"``, ``"product_matern52"``
        and ``"product_matern32"`` that has the highest evidence.
    :param own_kernels: True gives each output a kernel and a noise of its own. That is for few outputs: it takes N×N
        numbers for each.
    :param output_scales: True gives every output a scale of its own, in closed form after the fit: a parallel partial
        emulator (Gu and Berger, 2016). Predictions are then Student-t; the mean is the same.
    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`.
    :param seed: seed of :meth:`sample`; None gives other draws at every call.
    :param device: torch's device; by default the CPU.

    After fitting, ``fitted_`` is the record of the fit: its ``model`` is a network whose function is the constant 1,
    its ``bound`` the log evidence, and ``kernel_evidence`` that of each kernel which was tried.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> gps = IndependentGP().fit(X, np.sin(6 * X + np.linspace(0, 3, 50)))
    >>> mean, std = gps.predict(X[:4] + 0.02, return_std=True)
    >>> bool(np.abs(mean - np.sin(6 * (X[:4] + 0.02) + np.linspace(0, 3, 50))).max() < 1e-3)
    True
    """

    fitted_: FittedNetwork

    def __init__(
        self,
        kernel: Kernel | str = "auto",
        *,
        own_kernels: bool = False,
        output_scales: bool = False,
        output_shape: int | Sequence[int] | None = None,
        standardize: Standardize = True,
        seed: int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.kernel = kernel
        self.own_kernels = own_kernels
        self.output_scales = output_scales
        self.output_shape = output_shape
        self.standardize = standardize
        self.seed = seed
        self.device = device

    def _check_settings(self) -> None:
        check_truth("own_kernels", self.own_kernels)
        check_truth("output_scales", self.output_scales)

    def _train(self, data: TrainingData, seed: int) -> FittedNetwork:
        shape = data.known.source.shape[1:]
        fit = _fit_gps(data.X, data.known, shape, self.kernel, bool(self.own_kernels))
        scales = bool(self.output_scales)
        # One seed for all: the function is the constant 1 but for the jitter that its covariance needs.
        return record(data, fit.model, fit.draws, fit.evidence, seed=0, choice=fit.choice, scales=scales)


def independent_gps(
    X: Tensor,
    Y: Any,
    output_shape: int | Sequence[int],
    *,
    kernel: Kernel | str | None = None,
    own_kernels: bool = False,
) -> tuple[CollapsedGPRN, dict[str, Tensor]]:
    """Independent GPs that share one kernel, fitted by their evidence, as a network and its functions.

    :class:`IndependentGP` is the same as an estimator.

    :param X: inputs, ``(N, P)``.
    :param Y: outputs, ``(N, d_1, …, d_M)``, NaN where missing.
    :param output_shape: ``(d_1, …, d_M)``, or the number of outputs.
    :param kernel: as ``kernel_w`` of :class:`~pyro_gprn.CollapsedGPRN`.
    :param own_kernels: True gives each GP a kernel and a noise of its own: D separate Gaussian process regressions.
    :returns: a network whose one latent function is the constant 1, and that function as a draw of the network's site
        "v": the first two arguments of :func:`~pyro_gprn.posterior_predictive`.

    >>> from pyro_gprn import posterior_predictive
    >>> X = torch.linspace(0, 3, 20)[:, None]
    >>> predictive = posterior_predictive(*independent_gps(X, torch.sin(X + torch.arange(5)), 5), X + 0.05)
    >>> bool((predictive.mean() - torch.sin(X + 0.05 + torch.arange(5))).abs().max() < 0.01)
    True
    """
    fit = _fit_gps(X, Y, output_shape, "rbf" if kernel is None else kernel, own_kernels)
    return fit.model, fit.draws


class _Fit(NamedTuple):
    """Independent GPs."""

    model: CollapsedGPRN  #: with the constant 1 for its function
    draws: dict[str, Tensor]  #: that function, whitened, as the only draw of "v"
    evidence: float
    choice: KernelChoice


def _fit_gps(X: Tensor, Y: Any, output_shape: int | Sequence[int], kernel: Kernel | str, own_kernels: bool) -> _Fit:
    known = Y
    if isinstance(kernel, str) and kernel == "auto" and not isinstance(Y, OutputStatistics):
        known = OutputStatistics.of(Y)
    kernel, choice = choose(kernel, X, known, own_kernels=own_kernels)
    constant = Constant(torch.as_tensor(X).shape[1])
    model = CollapsedGPRN(X, output_shape, 1, kernel_f=constant, kernel_w=kernel, noise_f=1e-6, own_kernels=own_kernels)
    model.load_state_dict(choice.states.get(str(choice.name), {}), strict=False)
    evidence = fit_independent(model, model.statistics(known), from_here=bool(choice.states))
    Lf = model.at_centre(model.functions_factor).detach()
    function = torch.linalg.solve_triangular(Lf, torch.ones_like(Lf[:, :1]), upper=False)
    return _Fit(model, {"v": function.unsqueeze(0)}, evidence, choice)
