"""Where the training of a collapsed network may start: each start is one function, all are in :data:`STARTS`.

A start takes a model that stands at the hyperparameters of independent GPs (stage 1, independent.py). It changes the
hyperparameters in place and returns the whitened functions ``V``, ``(N, K)``, from which the posterior begins. To add
one, write such a function and name it in :data:`STARTS`; race.py does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import identity_like
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.completion import can_complete, complete
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.ranges import Ranges

#: Changes the hyperparameters and returns the whitened functions, by the data and a generator of random numbers.
Start = Callable[[CollapsedGPRN, OutputStatistics, torch.Generator], Tensor]

#: From this many rows on a fit says what it will take, and compares neither starts nor kernels unasked.
MANY_ROWS = 1000
#: Noise over signal, as variances, by which eigenvectors of the Gram matrix are smoothed.
SMOOTHING = 0.1


def independent(model: CollapsedGPRN, known: OutputStatistics, generator: torch.Generator) -> Tensor:
    """Independent GPs as they are: the first function is the constant 1, the others are near zero."""
    return model.whitened_start(generator=generator)


def constant(model: CollapsedGPRN, known: OutputStatistics, generator: torch.Generator) -> Tensor:
    """Independent GPs, with functions that can hardly vary until their length-scales get shorter.

    Functions that can vary must be known in every row as exactly as the outputs are. Where these have little noise,
    that costs most of the evidence of independent GPs, and training does not get it back: on two outputs of five inputs
    with a kernel each (evidence 412) the bound was -757 at the start and 1 after 400 steps, here 371 and 410.
    """
    Ranges(model, known).start_constant(length=10.0, noise_f=1e-5)
    return model.whitened_start(generator=generator)


@torch.no_grad()
def functions_carry(
    model: CollapsedGPRN, known: OutputStatistics, generator: torch.Generator, **hyperparameters: float
) -> Tensor:
    """The functions carry the signal and the weights hardly vary: nearly a linear model of coregionalisation.

    :param hyperparameters: as for :meth:`~pyro_gprn.training.ranges.Ranges.start_functions`.
    """
    Ranges(model, known).start_functions(**hyperparameters)
    F = leading_functions(known, model.n_latents)
    Kf = model.at_centre(lambda: model.kernel_f(model.X))
    F = Kf @ torch.linalg.solve(Kf + SMOOTHING * identity_like(len(Kf), Kf), F)
    return torch.linalg.solve_triangular(model.at_centre(model.functions_factor), F, upper=False)


def leading_functions(known: OutputStatistics, n_functions: int) -> Tensor:
    """The leading eigenvectors of the Gram matrix times the roots of their eigenvalues, of unit mean square a row.

    Few outputs are filled first where some are missing (outputs/completion.py); of many, an entry of the Gram matrix is
    the mean over those that have both rows.

    :returns: ``(N, n_functions)``.

    >>> known = OutputStatistics.of(torch.outer(torch.tensor([1.0, -2.0, 3.0]), torch.ones(5)))
    >>> F = leading_functions(known, 2).abs()
    >>> torch.allclose(F / F[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]).double(), atol=1e-6)
    True
    """
    values, vectors = torch.linalg.eigh(_mean_products(known))  # ascending
    F = vectors.flip(1)[:, :n_functions] * values.flip(0)[:n_functions].clamp(min=0.0).sqrt()
    F = torch.nn.functional.pad(F, (0, n_functions - F.shape[1]))
    return F / F.square().sum(1).mean().sqrt().clamp(min=torch.finfo(F.dtype).tiny)


def _mean_products(known: OutputStatistics) -> Tensor:
    """The mean, over outputs, of the products between two rows, ``(N, N)``."""
    n_rows, n_outputs = known.observed.shape[1], known.source.n_outputs
    if known.is_complete or not can_complete(n_rows, n_outputs):
        return known.gram_of_observed / known.pairs.clamp(min=1.0)
    everything = slice(None)
    filled = complete(known.values_at(everything), known.observed[known.patterns_at(everything)].mT)
    return filled @ filled.mT / n_outputs


#: All starts, by name.
STARTS: dict[str, Start] = {
    "independent": independent,
    "functions": partial(functions_carry, stretch=1.0, noise=0.1, noise_f=0.03),
    "rough functions": partial(functions_carry, stretch=1.0, noise=0.3, noise_f=0.5),
    "constant functions": constant,
}


def check_starts(names: Sequence[str] | None, n_rows: int) -> list[str]:
    """Names of starts that there are; for None all of them, or independent GPs alone if there are many rows.

    >>> check_starts(None, 100), check_starts(None, 2000)
    (['independent', 'functions', 'rough functions', 'constant functions'], ['independent'])
    """
    usual = list(STARTS) if n_rows < MANY_ROWS else ["independent"]
    chosen = usual if names is None else list(names)
    if isinstance(names, str) or not chosen or any(name not in STARTS for name in chosen):
        raise ValueError(f"starts must be None or names out of {', '.join(map(repr, STARTS))}; got {names!r}")
    return chosen
