"""Which kernel: by the exact evidence of independent GPs that share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.starts import MANY_ROWS
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.interruption import noticed_interrupts

#: What is tried, in this order; the first of equals is taken.
CANDIDATES = ("rbf", "matern52", "matern32", "product_matern52", "product_matern32")
#: So much more log evidence for each number of Y another kernel needs: on a noisy field Matérn-5/2 had 0.0008 more than
#: RBF, and the network predicted 2 % worse with it; where it predicted better it had 0.06 to 0.15 more.
MARGIN = 0.005
#: Products of one-dimensional kernels hold P arrays of N×N: they are left out where that is more numbers than this.
MOST_NUMBERS = 2**25


class KernelChoice(NamedTuple):
    """Which kernel was chosen, and why."""

    name: str | None = None  #: the kernel; None if there was nothing to choose
    evidence: dict[str, float] = {}  #: the log evidence of each that was tried, highest first


def choose_kernel(X: Tensor, known: OutputStatistics, candidates: Sequence[str] = CANDIDATES) -> KernelChoice:
    """The kernel with the highest log evidence of independent GPs that share it.

    The first candidate is taken unless another has more than :data:`MARGIN` more for each number of Y. Of inputs in one
    column, products are what they are made of; they are left out, as they are where they would take much memory. Ctrl-C
    ends the choice; what was tried until then counts. With very many rows the first is taken untried.

    :param X: inputs, ``(N, P)``.
    :param known: statistics of the outputs.
    :param candidates: kernels by name.

    >>> import torch
    >>> X = torch.linspace(0, 1, 20)[:, None].double()
    >>> choose_kernel(X, OutputStatistics.of(torch.sin(6 * X + torch.arange(5)))).name
    'rbf'
    """
    n_rows, n_columns = X.shape
    if n_rows >= MANY_ROWS:
        return KernelChoice(candidates[0])
    allows_products = n_columns > 1 and n_columns * n_rows**2 <= MOST_NUMBERS
    evidence: dict[str, float] = {}
    first: dict[str, Tensor] | None = None
    with noticed_interrupts() as interruption:
        for name in candidates:
            if name.startswith("product_") and not allows_products:
                continue
            if evidence and interruption.is_requested:
                break
            model = CollapsedGPRN(X, tuple(known.source.shape[1:]), 1, kernel_w=name)
            if first is not None:
                model.load_state_dict(first)  # length-scales that fitted one kernel are near those of the others
            evidence[name] = fit_independent(model, known, from_here=first is not None)
            first = model.state_dict() if first is None else first
    simplest, best = next(iter(evidence)), max(evidence, key=lambda name: evidence[name])
    is_better = evidence[best] - evidence[simplest] > MARGIN * known.n_observed
    in_order = dict(sorted(evidence.items(), key=lambda item: -item[1]))
    return KernelChoice(best if is_better else simplest, in_order)
