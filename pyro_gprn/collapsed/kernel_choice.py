"""Which kernel, and whether outputs share it or have one each: by the exact evidence of independent GPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_gprn.collapsed.independent import FITTED, fit_independent
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.starts import MANY_ROWS
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.interruption import noticed_interrupts

#: What is tried, in this order; the first of equals is taken. The rational quadratic kernel is a mixture of RBF kernels
#: of all length-scales: outputs of which some vary slowly and others fast want it.
CANDIDATES = ("rbf", "matern52", "matern32", "rational_quadratic", "product_matern52", "product_matern32")
#: So much more log evidence for each number of Y another kernel needs: on a noisy field Matérn-5/2 had 0.0008 more than
#: RBF, and the network predicted 2 % worse with it; where it predicted better it had 0.06 to 0.15 more.
MARGIN = 0.005
#: Products of one-dimensional kernels hold P arrays of N×N: they are left out where that is more numbers than this.
MOST_NUMBERS = 2**23
#: Whether each output wants a kernel of its own is asked for at most so many outputs, and as long as their matrices, D
#: of N×N, hold at most so many numbers in all.
MOST_OUTPUTS, MOST_NUMBERS_OF_EACH = 20, 2**20


class KernelChoice(NamedTuple):
    """Which kernel was chosen, and why."""

    name: str | None = None  #: the kernel; None if there was nothing to choose
    evidence: dict[str, float] = {}  #: the log evidence of each that was tried, highest first
    own_kernels: bool = False  #: True if each output has such a kernel of its own, to which the evidence belongs
    states: dict[str, dict[str, Tensor]] = {}  #: the hyperparameters of the weights and the noise, fitted, of each
    is_refitted: bool = False  #: True if these were then fitted to the rows at hand, by :meth:`refitted`

    def refitted(self, X: Tensor, known: OutputStatistics) -> KernelChoice:
        """The choice with the chosen kernel fitted to some of the rows, from where it stands.

        :param X: their inputs, ``(n, P)``.
        :param known: statistics of their outputs.

        >>> import torch
        >>> X = torch.linspace(0, 1, 20)[:, None].double()
        >>> Y = torch.sin(6 * X + torch.arange(5))
        >>> choice = choose_kernel(X, OutputStatistics.of(Y), ["rbf"])
        >>> choice.refitted(X[:15], OutputStatistics.of(Y[:15])).states["rbf"].keys() == choice.states["rbf"].keys()
        True
        """
        name = str(self.name)
        model = _gps(X, known, name, self.own_kernels)
        model.load_state_dict(self.states[name], strict=False)
        fit_independent(model, known, from_here=True)
        return self._replace(states={name: _fitted_state(model)}, is_refitted=True)


def choose_kernel(
    X: Tensor, known: OutputStatistics, candidates: Sequence[str] = CANDIDATES, *, own_kernels: bool = False
) -> KernelChoice:
    """The kernel with the highest log evidence of independent GPs that share it.

    The first candidate is taken unless another has more than :data:`MARGIN` more for each number of Y. Products are
    left out where they are not worth a try, unless there is nothing else. Ctrl-C ends the choice; what was tried until
    then counts. With very many rows the first is taken untried.

    :param X: inputs, ``(N, P)``.
    :param known: statistics of the outputs.
    :param candidates: kernels by name.
    :param own_kernels: True for independent GPs that have a kernel of this name each, with their own hyperparameters.

    >>> import torch
    >>> X = torch.linspace(0, 1, 20)[:, None].double()
    >>> choose_kernel(X, OutputStatistics.of(torch.sin(6 * X + torch.arange(5))), ["rbf", "matern32"]).name
    'rbf'
    """
    if len(X) >= MANY_ROWS:
        return KernelChoice(candidates[0], own_kernels=own_kernels)
    n_kernels = known.source.n_outputs if own_kernels else 1
    names = [name for name in candidates if _is_worth_a_try(name, X, n_kernels)] or candidates[:1]
    evidence: dict[str, float] = {}
    states: dict[str, dict[str, Tensor]] = {}
    first: dict[str, Tensor] | None = None
    with noticed_interrupts() as interruption:
        for name in names:
            if evidence and interruption.is_requested:
                break
            model = _gps(X, known, name, own_kernels)
            if first is not None:
                # Length-scales that fitted one kernel are near those of the others; some have further hyperparameters.
                model.load_state_dict(first, strict=False)
            evidence[name] = fit_independent(model, known, from_here=first is not None)
            first = model.state_dict() if first is None else first
            states[name] = _fitted_state(model)
    simplest, best = next(iter(evidence)), max(evidence, key=lambda name: evidence[name])
    is_better = evidence[best] - evidence[simplest] > MARGIN * known.n_observed
    in_order = dict(sorted(evidence.items(), key=lambda item: -item[1]))
    return KernelChoice(best if is_better else simplest, in_order, own_kernels, states)


def _is_worth_a_try(name: str, X: Tensor, n_kernels: int) -> bool:
    """Of inputs in one column, products are what they are made of; and they may take much memory."""
    n_rows, n_columns = X.shape
    return not name.startswith("product_") or (1 < n_columns <= MOST_NUMBERS / (n_rows**2 * n_kernels))


def _gps(X: Tensor, known: OutputStatistics, kernel: str, own_kernels: bool) -> CollapsedGPRN:
    """Independent GPs that share a kernel, or have one each."""
    return CollapsedGPRN(X, tuple(known.source.shape[1:]), 1, kernel_w=kernel, own_kernels=own_kernels)


def _fitted_state(model: CollapsedGPRN) -> dict[str, Tensor]:
    """The hyperparameters that a fit of independent GPs changes."""
    return {key: value for key, value in model.state_dict().items() if key.startswith(FITTED)}


def choose_own_kernels(X: Tensor, known: OutputStatistics, candidates: Sequence[str] = CANDIDATES) -> KernelChoice:
    """A kernel by :func:`choose_kernel` that all outputs share, or one for each output if the data ask for it.

    They do if the log evidence of independent GPs with a kernel each, of the kind that is best to share (or of the next
    best, where so many products would take much memory), is higher by more than what the further hyperparameters cost
    (:func:`own_kernels_penalty`). Then the kind is chosen anew, by the evidence of a kernel each. With many outputs or
    rows the kernel is shared, untried.

    :param X: inputs, ``(N, P)``.
    :param known: statistics of the outputs.
    :param candidates: kernels by name.

    >>> import torch
    >>> X = torch.linspace(0, 1, 30)[:, None].double()
    >>> Y = torch.cat([torch.sin(3 * X), torch.sin(30 * X)], 1)
    >>> choose_own_kernels(X, OutputStatistics.of(Y), ["rbf"]).own_kernels
    True
    """
    with noticed_interrupts() as interruption:
        shared = choose_kernel(X, known, candidates)
        n_rows, n_outputs = len(X), known.source.n_outputs
        is_few = 1 < n_outputs <= MOST_OUTPUTS and n_outputs * n_rows**2 <= MOST_NUMBERS_OF_EACH
        if shared.name is None or not shared.evidence or not is_few or interruption.is_requested:
            return shared
        by_evidence = [shared.name, *shared.evidence]
        kind = next((name for name in by_evidence if _is_worth_a_try(name, X, n_outputs)), shared.name)
        own = choose_kernel(X, known, [kind], own_kernels=True)
        gain = own.evidence[kind] - shared.evidence[shared.name]
        if interruption.is_requested or gain <= own_kernels_penalty(X, known, kind):
            return shared
        return own if len(candidates) == 1 else choose_kernel(X, known, candidates, own_kernels=True)


def own_kernels_penalty(X: Tensor, known: OutputStatistics, kernel: str) -> float:
    """What the hyperparameters of a kernel each cost beside those of one shared kernel, as a difference of BICs.

    ``½ n (Σ_d log N_d − log Σ_d N_d)`` for n hyperparameters of a kernel and its noise, and ``N_d`` numbers of output
    d: a kernel of its own is learnt from these alone.

    >>> import torch
    >>> round(own_kernels_penalty(torch.zeros(80, 2), OutputStatistics.of(torch.zeros(80, 4)), "rbf"), 1)
    29.4
    """
    model = CollapsedGPRN(X, 1, 1, kernel_w=kernel)
    n = sum(p.numel() for name, p in model.named_parameters() if name.startswith(FITTED))
    numbers = known.by_output.numbers
    return 0.5 * n * (numbers.log().sum().item() - math.log(numbers.sum().item()))
