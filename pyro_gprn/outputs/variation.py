"""How much outputs vary over the rows, and which of them vary most."""

from __future__ import annotations

from torch import Tensor

#: The share of outputs that vary most, and the factor by which the variance of each of them must exceed the median for
#: them to be told apart.
VARIED, MORE_VARIED = 0.1, 1.1


def spread_of(values: Tensor) -> Tensor:
    """The standard deviation of each output over the rows in which it was observed, ``(b,)``; 0 without any.

    :param values: of the outputs, ``(N, b)``, NaN where one is missing.

    >>> import torch
    >>> spread_of(torch.tensor([[1.0, 0.0], [3.0, torch.nan], [2.0, 4.0]]))
    tensor([0.8165, 2.0000])
    """
    return (values - values.nanmean(0)).square().nanmean(0).sqrt().nan_to_num(nan=0.0)


def most_varied(spread: Tensor) -> Tensor | None:
    """Which outputs are the tenth that varies most, boolean, ``(b,)``; None if all outputs vary about alike.

    :param spread: the standard deviation of each output, ``(b,)``.

    >>> import torch
    >>> most_varied(torch.tensor([1.0, 3.0, 1.0, 2.0]))
    tensor([False,  True, False, False])
    >>> most_varied(torch.ones(4)) is None
    True
    """
    variance = spread.square()
    n_varied = max(1, round(VARIED * len(variance)))
    varied = variance >= variance.topk(n_varied).values[-1]
    return varied if variance[varied].min() > MORE_VARIED * variance.median() else None
