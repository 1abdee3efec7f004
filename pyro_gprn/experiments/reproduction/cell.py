"""A cell of an experiment's grid: one seeded run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """What is run: a method on a data set.

    >>> print(Cell("jura", 249, "kronecker", 2, 0))
    jura 249, kronecker K = 2, repeat 0
    """

    data: str  #: the name of the data set
    n_train: int  #: the number of training rows
    method: str  #: the name of the method
    n_latents: int | None  #: K: latent functions, components or features; None for a method that has no such number
    repeat: int  #: the number of the repeat: the seed of the split and of the method

    def __str__(self) -> str:
        latents = "" if self.n_latents is None else f" K = {self.n_latents}"
        return f"{self.data} {self.n_train}, {self.method}{latents}, repeat {self.repeat}"
