"""Stage 1: independent GPs that share one kernel, the special case in which every latent function is constant."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError
from pyro_gprn.collapsed.likelihood import effective_outputs, gram_log_density
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.ranges import Box

#: Starts: length-scale over √P standard deviations of the inputs, noise over the outputs' scale.
STARTS = ((0.3, 0.1), (1.0, 0.03), (3.0, 0.003))
#: Twice what the Gram matrix says; see the package's docstring.
EFFECTIVE_OUTPUTS_FACTOR = 2.0


def fit_independent(model: CollapsedGPRN, known: OutputStatistics) -> tuple[float, bool]:
    """Fits the kernel of the weights and the noise, in place, with F = 1, by the exact evidence.

    :returns: the evidence, and whether Ctrl-C cut the fit short (the best so far is kept).
    """
    box = Box(model, known)
    chosen = {name: p for name, p in model.named_parameters() if name.startswith(("kernel_w.", "noise_y"))}
    sizes = [parameter.numel() for parameter in chosen.values()]
    constant = torch.ones_like(model.X[:, :1])
    unit = known.n_observed  # keeps the objective near 1

    @torch.no_grad()
    def put(values: np.ndarray) -> None:
        parts = torch.from_numpy(values.copy()).split(sizes)
        for parameter, part in zip(chosen.values(), parts, strict=True):
            parameter.copy_(part.reshape(parameter.shape))

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        put(values)
        try:
            (Kw, noise), log_prior = model.with_log_prior(model.weights_and_noise)
            value = gram_log_density(model.output_covariance(constant, Kw, noise), known) + log_prior
            gradients = torch.autograd.grad(value, list(chosen.values()), materialize_grads=True)
        except NotPositiveDefiniteError:
            return 1e10, np.zeros_like(values)
        return -value.item() / unit, -torch.cat([g.flatten() for g in gradients]).cpu().numpy() / unit

    def flat() -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in chosen.values()]).double().cpu().numpy()

    box.clamp()
    starts = [flat()]
    for length, noise in STARTS:
        box.start_independent(length, noise)
        starts.append(flat())
    bounds = [box.of(name) for name, size in zip(chosen, sizes, strict=True) for _ in range(size)]

    def descend(start: np.ndarray, iterations: int) -> OptimizeResult:
        options = {"maxiter": iterations, "ftol": 1e-9, "gtol": 1e-6}
        return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    # Between its tiny products SciPy's BLAS waits busily, on a core that torch needs: four times slower on two cores.
    with threadpool_limits(limits=1, user_api="blas"):
        runs, was_interrupted = [OptimizeResult(x=starts[0], fun=objective(starts[0])[0])], False
        try:
            runs += [descend(start, 10) for start in starts]  # ten steps tell which is best
            runs.append(descend(min(runs, key=lambda run: run.fun).x, 100))
        except KeyboardInterrupt:
            was_interrupted = True
            warnings.warn("training was interrupted before the first step; keeping independent GPs", stacklevel=6)
    best = min(runs, key=lambda run: run.fun)
    put(best.x)
    return -best.fun * unit, was_interrupted


@torch.no_grad()
def read_effective_outputs(model: CollapsedGPRN, known: OutputStatistics) -> float:
    """``effective_outputs="auto"``, at the hyperparameters of the independent GPs."""
    (Kw, noise), _ = model.with_log_prior(model.weights_and_noise)
    covariance = model.output_covariance(torch.ones_like(model.X[:, :1]), Kw, noise)
    return min(float(model.n_outputs), EFFECTIVE_OUTPUTS_FACTOR * effective_outputs(covariance, known))
