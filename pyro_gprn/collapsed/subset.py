"""Where the training of a network with inducing inputs begins: at the exact network of some of the rows.

Stage 1, the race between starts and most of the way to the hyperparameters then cost what they cost for a few hundred
rows. The network of all rows takes over the hyperparameters, the number of effective outputs and the functions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.source import RowsOfOutputs
from pyro_gprn.outputs.sums import sum_up
from pyro_gprn.prediction.conditional import Conditional
from pyro_gprn.pyro_state import new_generator

#: How many rows the exact network has.
N_ROWS = 300


class Subset(NamedTuple):
    """Some of the rows."""

    rows: Tensor  #: their numbers, (n,)
    known: OutputStatistics  #: statistics of their outputs, with Gram matrices

    @classmethod
    def of(cls, known: OutputStatistics, seed: int = 0) -> Subset:
        """A random choice of :data:`N_ROWS` rows, or all of them if there are fewer."""
        order = torch.randperm(known.source.n_rows, generator=new_generator(seed), device="cpu")
        rows = order[:N_ROWS].sort().values.to(known.source.device)
        return cls(rows, sum_up(RowsOfOutputs(known.source, rows)))


@torch.no_grad()
def take_over(model: CollapsedGPRN, part: CollapsedGPRN, guide: CollapsedGuide) -> Tensor:
    """Sets hyperparameters to those of the network of some rows; returns its functions at the inducing inputs.

    :param model: the network of all rows, which is changed.
    :param part: the trained network of some of the rows.
    :param guide: its posterior.
    :returns: whitened, ``(m, K)``.
    """
    own = {"X", "Z"}
    model.load_state_dict({name: value for name, value in part.state_dict().items() if name not in own}, strict=False)
    model.effective_outputs = part.effective_outputs
    inputs = model.function_inputs
    L = part.at_centre(part.functions_factor)
    at_inputs = part.at_centre(lambda: Conditional.of(part.kernel_f, part.X, inputs, L, jointly=False))
    values = at_inputs.whitened.mT @ guide.v_loc
    return torch.linalg.solve_triangular(model.at_centre(model.functions_factor), values, upper=False)
