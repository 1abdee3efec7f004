"""The methods of the experiments, by name: which estimator, with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

#: The kernel of the paper.
RBF = {"kernel_f": "rbf", "kernel_w": "rbf"}
#: As little training of a network as possible.
LITTLE = {"steps": 3, "starts": ["independent"]}


@dataclass(frozen=True)
class Method:
    """An estimator and its settings.

    :param name: what the method is called here.
    :param estimator: the class: ``"GPRNRegressor"``, or the name of one in :mod:`pyro_gprn.baselines`.
    :param settings: its arguments.
    :param latents: the argument that takes K. None if the method has no such number.
    :param in_paper: what the paper calls the method. Empty if it is not in the paper.
    :param folds: True if the estimator takes ``fold``, where a data set has one.
    :param quick: further arguments for ``--quick``.
    """

    name: str
    estimator: str
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    latents: str | None = "n_latents"
    in_paper: str = ""
    folds: bool = False
    quick: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def arguments(
        self, n_latents: int | None, seed: int, *, fold: Sequence[int] | None = None, is_quick: bool = False
    ) -> dict[str, Any]:
        """The arguments of the estimator, without those that change no result.

        :param n_latents: K; None for a method without.
        :param seed: the seed of the method.
        :param fold: that of the data set, if it has one.
        :param is_quick: True for as little work as possible.

        >>> METHODS["HOGP"].arguments(2, 0, fold=(36, 109)), METHODS["LMC"].arguments(2, 0, fold=(36, 109))
        ({'n_latent_dims': 2, 'fold': (36, 109), 'seed': 0}, {'kernel': 'rbf', 'n_latents': 2, 'seed': 0})
        """
        latents = {} if self.latents is None else {self.latents: n_latents}
        folds = {"fold": fold} if self.folds and fold else {}
        return {**self.settings, **latents, **folds, "seed": seed, **(self.quick if is_quick else {})}

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """The estimator with these arguments, not fitted yet.

        >>> METHODS["kronecker"].make({"n_latents": 2, "inference": "kronecker"})
        GPRNRegressor(inference='kronecker', n_latents=2, progress=False)
        """
        from pyro_gprn import GPRNRegressor, baselines

        made = getattr(baselines, self.estimator, GPRNRegressor)(**arguments)
        return made.set_params(progress=False) if hasattr(made, "progress") else made


def _network(name: str, in_paper: str = "", **settings: Any) -> Method:
    """A network with the kernel of the paper."""
    return Method(name, "GPRNRegressor", {"inference": name, **RBF, **settings}, "n_latents", in_paper, quick=LITTLE)


def _reduced(name: str, reducer: str) -> Method:
    return Method(name, "ReducedGP", {"reducer": reducer, "kernel": "rbf"}, "n_components", name, quick={"steps": 3})


#: The estimator as it comes.
OURS = "GPRNRegressor()"
METHODS = {
    method.name: method
    for method in (
        _network("kronecker", "SGPRN"),
        _network("mean-field", "MFVB"),
        _network("mixture", "NPV"),
        # as the others: one kernel for all outputs, and nothing chosen by held-out rows
        _network("collapsed", own_kernels=False, selection=False),
        _reduced("PCA-GP", "pca"),
        _reduced("KPCA-GP", "kpca"),
        _reduced("IsoMap-GP", "isomap"),
        Method("HOGP", "HOGP", latents="n_latent_dims", in_paper="HOGP", folds=True, quick={"steps": 3}),
        Method("LMC", "LMC", {"kernel": "rbf"}, quick={"steps": 3}),
        Method("IndependentGP", "IndependentGP", {"kernel": "rbf"}, None),
        Method("TrainingMean", "TrainingMean", latents=None),
        Method(OURS, "GPRNRegressor", latents=None, quick={"own_kernels": False, "selection": False, **RBF, **LITTLE}),
    )
}
