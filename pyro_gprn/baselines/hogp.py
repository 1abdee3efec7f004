"""The higher-order Gaussian process, by BoTorch."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_gprn.baselines.base import Baseline, GaussianRecord, check_complete
from pyro_gprn.baselines.extra import load
from pyro_gprn.estimator.checks import check_count
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.network.checks import check_output_shape
from pyro_gprn.pyro_state import new_seed, own_randomness, white_noise

#: Arrays of the size of all training outputs, and of the covariance of each mode, that a fit and a prediction hold at
#: once (measured for 40 and 100 rows of 50 × 50 to 200 × 200, 30 × 30 × 30 and 1,500 outputs).
ARRAYS_OF_OUTPUTS, ARRAYS_OF_MODES = 25, 10
#: Numbers of all rows that are drawn or predicted at once: rows × outputs × draws.
BLOCK_NUMBERS = 2**22


class HOGP(Baseline):
    """The higher-order Gaussian process (Zhe et al., 2019): BoTorch's ``HigherOrderGP`` with its defaults.

    Its covariance is a Kronecker product of a kernel of the inputs and a kernel of each output mode, whose points have
    learnt places in a latent space. Matrices of ``d_m × d_m`` for each mode and several arrays of the size of Y are
    held in memory: a fit that would need more memory than there is says so before it begins. Trained by Adam, as
    BoTorch's own example does. Y must be complete. Many outputs of one mode are folded into a tensor by ``fold``, which
    gives each mode a small matrix. Needs ``pyro-gprn[baselines]``.

    :param n_latent_dims: the dimension of the latent space of each output mode.
    :param steps: at most this many steps of Adam; fewer when the marginal likelihood has settled.
    :param learning_rate: of Adam.
    :param memory: how many gigabytes a fit may take; by default all that the machine has.
    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param fold: ``(d_1, …, d_M)`` into which outputs of one mode, ``(N, D)``, are folded, row-major. Its product is at
        least D; what is beyond D is filled with zeros, the mean of standardised outputs, and left out of predictions,
        which come in the shape of Y. By default outputs keep their modes.
    :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`.
    :param seed: seed of all draws and of the latent places at the start; None takes a seed from torch.
    :param device: torch's device; by default the CPU.

    After fitting, ``fitted_.model`` is the BoTorch model, of standardised data.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 12)[:, None]
    >>> hogp = HOGP(steps=20, seed=0).fit(X, np.sin(6 * X + np.linspace(0, 3, 8)).reshape(12, 2, 4))
    >>> mean, std = hogp.predict(X[:3] + 0.02, return_std=True)
    >>> mean.shape, std.shape
    ((3, 2, 4), (3, 2, 4))

    Seven outputs of one mode, a prime number, are folded with a zero:

    >>> hogp = HOGP(steps=20, fold=(2, 4), seed=0).fit(X, np.sin(6 * X + np.linspace(0, 3, 7)))
    >>> hogp.predict(X[:3] + 0.02).shape
    (3, 7)
    """

    fitted_: FittedHOGP

    def __init__(
        self,
        n_latent_dims: int = 1,
        *,
        steps: int = 500,
        learning_rate: float = 0.05,
        memory: float | None = None,
        output_shape: int | Sequence[int] | None = None,
        fold: Sequence[int] | None = None,
        standardize: Standardize = True,
        seed: int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.n_latent_dims = n_latent_dims
        self.steps = steps
        self.learning_rate = learning_rate
        self.memory = memory
        self.output_shape = output_shape
        self.fold = fold
        self.standardize = standardize
        self.seed = seed
        self.device = device

    def _check_settings(self) -> None:
        check_count("n_latent_dims", self.n_latent_dims)
        check_count("steps", self.steps)

    def _train(self, data: TrainingData, seed: int) -> FittedHOGP:
        check_complete(data, "HOGP", with_all_outputs=True)
        shape = folded_shape(data.output_shape, self.fold)
        check_memory(len(data.X), shape, self.memory)
        Y = data.known.source.read(slice(None)).reshape(len(data.X), -1)
        Y = pad(Y, (0, math.prod(shape) - Y.shape[1])).reshape(len(Y), *shape).contiguous()
        with _kronecker_algebra(), own_randomness(seed):
            latents = [self.n_latent_dims] * len(shape)
            make = load("botorch.models.utils.gpytorch_modules").get_covar_module_with_dim_scaled_prior
            model = load("botorch.models").HigherOrderGP(
                data.X,
                Y,
                covar_modules=[make(ard_num_dims=n) for n in (data.X.shape[1], *latents)],
                num_latent_dims=latents,
                outcome_transform=None,
            )
            likelihood = load("gpytorch.mlls").ExactMarginalLogLikelihood(model.likelihood, model)
            load("botorch.optim.fit").fit_gpytorch_mll_torch(
                likelihood,
                step_limit=self.steps,
                optimizer=lambda parameters: torch.optim.Adam(parameters, lr=self.learning_rate),
            )
        return FittedHOGP(data, model.requires_grad_(False))


@dataclass(frozen=True)
class FittedHOGP(GaussianRecord):
    """A higher-order Gaussian process.

    :param model: BoTorch's. Its outputs are those of Y and, after them, zeros that fill a fold.
    """

    model: Any

    def __getstate__(self) -> dict[str, Any]:
        self.model.train()  # throws away what it keeps for predictions, which cannot be copied
        return self.__dict__

    @property
    def noise(self) -> Tensor:
        """The variance of the noise, ``(1,)``."""
        return self.model.likelihood.noise.detach()

    def moments(self, X: Tensor, *, with_variance: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        means, variances = [], []
        for rows in X.split(self._at_once(1)):
            with _kronecker_algebra():
                posterior = self.model.posterior(rows)
            means.append(self._outputs_of(posterior.mean))
            variances.append(self._outputs_of(posterior.variance))
        yield slice(None), torch.cat(means), torch.cat(variances).clamp(min=0.0) + self.noise

    def draw(self, X: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        at_once = self._at_once(len(self.data.X) + len(X))
        with _kronecker_algebra(), own_randomness(new_seed(generator)):
            posterior = self.model.posterior(X)
            sizes = [min(at_once, n_draws - start) for start in range(0, n_draws, at_once)]
            signal = torch.cat([self._outputs_of(posterior.rsample(torch.Size([size]))) for size in sizes])
        noise = white_noise(*signal.shape, like=signal, generator=generator)
        return signal.addcmul_(noise, self.noise.sqrt())

    def _outputs_of(self, tensor: Tensor) -> Tensor:
        """The outputs of Y, ``(…, D)``, of a tensor ``(…, d_1, …, d_M)``, without what fills a fold."""
        return tensor.flatten(-len(self.model.target_shape))[..., : self.data.outputs.n_outputs]

    def _at_once(self, n_rows: int) -> int:
        """How many times so many rows may be drawn or predicted at once."""
        return max(1, BLOCK_NUMBERS // (n_rows * self.model.target_shape.numel()))


def folded_shape(output_shape: Sequence[int], fold: Sequence[int] | None) -> tuple[int, ...]:
    """The modes that outputs have when they are folded. Raises an error if they cannot be.

    :param output_shape: the modes that they have.
    :param fold: ``(d_1, …, d_M)``; None leaves them as they are.

    >>> folded_shape((7,), None), folded_shape((7,), (2, 4))
    ((7,), (2, 4))
    """
    if fold is None:
        return tuple(output_shape)
    shape, n_outputs = tuple(check_output_shape(fold, "fold")), math.prod(output_shape)
    if len(output_shape) > 1:
        raise ValueError(f"fold is for outputs of one mode, (D,); got outputs of shape {tuple(output_shape)}")
    if math.prod(shape) < n_outputs:
        raise ValueError(f"fold must have room for all {n_outputs} outputs; {shape} has it for {math.prod(shape)}")
    return shape


def check_memory(n_rows: int, output_shape: Sequence[int], most: float | None = None) -> None:
    """Raises an error if a fit would need more memory than there is.

    :param n_rows: N.
    :param output_shape: ``(d_1, …, d_M)``.
    :param most: how many gigabytes there are; None asks the machine (where it does not tell, nothing is checked).

    >>> check_memory(100, (50, 50))
    >>> check_memory(100, (1000, 1000, 10))
    Traceback (most recent call last):
    MemoryError: HOGP would need about 200.2 GB for 100 rows of (1000, 1000, 10) outputs, and there are ...
    """
    numbers = ARRAYS_OF_OUTPUTS * n_rows * math.prod(output_shape)
    numbers += ARRAYS_OF_MODES * sum(size**2 for size in (n_rows, *output_shape))
    needed, there_is = 8 * numbers / 1e9, _memory_of_the_machine() if most is None else most
    if there_is is not None and needed > there_is:
        raise MemoryError(
            f"HOGP would need about {needed:.1f} GB for {n_rows} rows of {tuple(output_shape)} outputs, and there are"
            f" {there_is:.1f} GB. GPRNRegressor, IndependentGP and ReducedGP need little beside Y"
        )


def _memory_of_the_machine() -> float | None:
    """In gigabytes; None where Python cannot tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def _kronecker_algebra() -> Iterator[None]:
    """Exact Kronecker algebra in place of dense matrices, and no warnings of inputs outside the unit cube."""
    fast = load("gpytorch.settings").fast_computations(False, True, True)
    with warnings.catch_warnings(), load("botorch.settings").validate_input_scaling(False), fast:
        warnings.simplefilter("ignore")
        yield
