"""Ranges of hyperparameters and where they start, from the data."""

from __future__ import annotations

import math

import torch
from pyro.contrib.gp.kernels import Constant
from torch import Tensor
from torch.distributions import constraints

from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics

#: The longest length-scale over the longest distance between inputs. At 10 the log evidence of a borehole with inputs
#: that do not matter was 1231, at 10,000 it was 2261: what is nearly linear wants long length-scales.
LONGEST = 1e4
#: Of more rows every second, third … is looked at for distances, so that these are no more.
MOST_ROWS = 3000
#: Where the constant in a sum of kernels of the weights starts, over the mean square of the outputs.
OFFSET = 0.01
#: Where the part of it that varies starts, likewise, if the functions carry the signal.
VARYING = 0.1


class Ranges:
    """Ranges of length-scales, variances and noises, and where these start, from the data.

    Length-scales stay between a tenth of the shortest and 10,000 times the longest distance between inputs (and above a
    thousandth of the longest), the noise above 1e-6 of the outputs' root mean square, and the power of a rational
    quadratic kernel where it is neither the same everywhere nor an RBF kernel. Without ranges an optimiser may
    go where a covariance has no Cholesky factor. Hyperparameters with other names have no range. Where each output has
    hyperparameters of its own, they start by its own mean square.

    :param model: the model whose hyperparameters these are.
    :param known: statistics of the outputs.

    >>> model = Network(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2, noise_y=100.0)
    >>> Ranges(model, OutputStatistics.of(torch.ones(5, 3))).clamp()
    >>> round(model.noise_y.item(), 6)  # three times the root mean square of the outputs
    3.0
    """

    def __init__(self, model: Network, known: OutputStatistics) -> None:
        distances = torch.pdist(model.X[:: -(-len(model.X) // MOST_ROWS)])
        longest = distances.max().item() if len(distances) and distances.max() > 0 else 1.0
        apart = distances[distances > 1e-9 * longest]
        shortest = apart.min().item() if len(apart) else longest
        self.mean_square = torch.where(known.mean_square > 1e-30, known.mean_square, 1.0)  # of the outputs, () or (D,)
        least, most = self.mean_square.min().item(), self.mean_square.max().item()
        ranges = {
            "lengthscale": (max(0.1 * shortest, 1e-3 * longest), LONGEST * longest),
            "variance": (1e-4 * least, 1e8 * most),
            "noise_y": (1e-6 * math.sqrt(least), 3 * math.sqrt(most)),
            "noise_f": (1e-6, 3.0),  # of the scale of f: it may be the nugget that outputs share
            "scale_mixture": (0.02, 1e3),  # of rational quadratic kernels, which are RBF kernels beyond
        }
        self._bounds = {
            name: (math.log(ranges[kind][0]), math.log(ranges[kind][1]))
            for kind in ranges
            for name in positive_parameters(model, kind)
        }
        self._model, self._longest = model, longest
        offsets = (math.log(1e-8 * least), math.log(1e8 * most))  # down to nothing
        self._bounds |= dict.fromkeys(self._offsets(), offsets)

    def of(self, name: str) -> tuple[float, float]:
        """The least and the largest value of an unconstrained (logarithmic) parameter; infinite if it has no range."""
        return self._bounds.get(name, (-math.inf, math.inf))

    @torch.no_grad()
    def clamp(self) -> None:
        """Puts every hyperparameter back into its range."""
        for name, parameter in self._model.named_parameters():
            parameter.clamp_(*self.of(name))

    def _offsets(self) -> list[str]:
        """The constants in sums of kernels of the weights."""
        modules = dict(self._model.named_modules())
        names = [f"kernel_w.{name}" for name in positive_parameters(self._model.kernel_w, "variance") if "." in name]
        return [name for name in names if isinstance(modules[name.rpartition(".")[0]], Constant)]

    @torch.no_grad()
    def start_independent(self, length: float, noise: float) -> None:
        """Sets the kernel of the weights and the noise to where the fit of independent GPs starts.

        :param length: the length-scales, in multiples of √P times the standard deviation of each input column.
        :param noise: ``σ_y``, as a multiple of the root mean square of the outputs.
        """
        parameters = dict(self._model.named_parameters())
        spread = self._model.X.std(0, correction=0)
        lengths = length * math.sqrt(len(spread)) * torch.where(spread > 0, spread, 1.0)
        for name in positive_parameters(self._model.kernel_w, "lengthscale"):
            target = parameters[f"kernel_w.{name}"]
            target.copy_((lengths if target.shape[-1:] == lengths.shape else lengths.mean()).log())
        for name in positive_parameters(self._model.kernel_w, "variance"):
            _set(parameters[f"kernel_w.{name}"], self.mean_square * max(1.0, length**2))
        for name in self._offsets():
            _set(parameters[name], OFFSET * self.mean_square)
        for name in positive_parameters(self._model, "noise_y"):
            _set(parameters[name], noise * self.mean_square.sqrt())
        self.clamp()

    @torch.no_grad()
    def start_constant(self, length: float, noise_f: float) -> None:
        """Sets the kernel of the functions to where they hardly vary.

        :param length: their length-scales, over the longest distance between inputs.
        :param noise_f: of the functions.
        """
        parameters = dict(self._model.named_parameters())
        for name in positive_parameters(self._model.kernel_f, "lengthscale"):
            parameters[f"kernel_f.{name}"].fill_(math.log(length * self._longest))
        for name in positive_parameters(self._model, "noise_f"):
            parameters[name].fill_(math.log(noise_f))
        self.clamp()

    @torch.no_grad()
    def start_functions(self, stretch: float, noise: float, noise_f: float) -> None:
        """Sets the hyperparameters to where the functions carry the signal: ``κ_w = a + b κ`` with b a tenth of a.

        The functions take over the length-scales that the weights have, where they have as many; of those that each
        output has of its own, the geometric mean.

        :param stretch: length-scales of the functions, over those of the weights.
        :param noise: of the outputs, over their scale.
        :param noise_f: of the functions.
        """
        parameters = dict(self._model.named_parameters())
        names = positive_parameters(self._model, "lengthscale")
        of_f, of_w = ([parameters[n] for n in names if n.startswith(which)] for which in ("kernel_f.", "kernel_w."))
        if self.mean_square.dim():
            of_w = [length.mean(0) for length in of_w]
        if [length.shape for length in of_f] == [length.shape for length in of_w]:
            for functions, weights in zip(of_f, of_w, strict=True):
                functions.copy_(weights + math.log(stretch))
        offsets = self._offsets()
        for name in positive_parameters(self._model.kernel_w, "variance"):
            share = 1.0 if f"kernel_w.{name}" in offsets else VARYING
            _set(parameters[f"kernel_w.{name}"], share * self.mean_square)
        for name in positive_parameters(self._model, "noise_y"):
            _set(parameters[name], noise * self.mean_square.sqrt())
        for name in positive_parameters(self._model, "noise_f"):
            parameters[name].fill_(math.log(noise_f))
        self.clamp()


def _set(parameter: Tensor, values: Tensor) -> None:
    """Sets an unconstrained (logarithmic) parameter; one number that all outputs share, to the geometric mean."""
    parameter.copy_(values.log() if parameter.dim() else values.log().mean())


def positive_parameters(module: torch.nn.Module, kind: str) -> list[str]:
    """Names of the unconstrained (logarithmic) parameters of the positive ones whose names start with ``kind``.

    >>> from pyro.contrib.gp.kernels import RBF
    >>> positive_parameters(RBF(1), "lengthscale")
    ['lengthscale_unconstrained']
    """
    found = []
    for prefix, child in module.named_modules():
        for name, (constraint, _) in getattr(child, "_pyro_params", {}).items():
            if name.startswith(kind) and _is_positive(constraint):
                found.append(f"{prefix}.{name}_unconstrained".lstrip("."))
    return found


def _is_positive(constraint: constraints.Constraint) -> bool:
    """True for the constraint of positive numbers, and for copies of it: a copied model has its own."""
    return type(constraint) is type(constraints.positive) and constraint.lower_bound == 0.0
