"""Independent GPs that share one kernel, or have one each: the baseline to beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro.contrib.gp.kernels import Constant, Kernel
from torch import Tensor

from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.model import CollapsedGPRN


def independent_gps(
    X: Tensor,
    Y: Tensor,
    output_shape: int | Sequence[int],
    *,
    kernel: Kernel | str | None = None,
    own_kernels: bool = False,
) -> tuple[CollapsedGPRN, dict[str, Tensor]]:
    """Independent GPs that share one kernel, fitted by their evidence: the baseline to beat.

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
    constant = Constant(torch.as_tensor(X).shape[1])
    model = CollapsedGPRN(X, output_shape, 1, kernel_f=constant, kernel_w=kernel, noise_f=1e-6, own_kernels=own_kernels)
    fit_independent(model, model.statistics(Y))
    Lf = model.at_centre(model.functions_factor).detach()
    return model, {"v": torch.linalg.solve_triangular(Lf, torch.ones_like(Lf[:, :1]), upper=False).unsqueeze(0)}
