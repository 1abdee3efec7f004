"""Topology optimisation: the stiffest plate that a given amount of material can make.

After E. Andreassen, A. Clausen, M. Schevenels, B. S. Lazarov and O. Sigmund, *Efficient topology optimization in MATLAB
using 88 lines of code* (Structural and Multidisciplinary Optimization 43, 2011), with their constants.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.ndimage import convolve
from threadpoolctl import threadpool_limits

from pyro_gprn.datasets.simulated.elasticity import Plate

VOID_MODULUS = 1e-9  # of an empty element: keeps the stiffness matrix positive definite
MOVE_LIMIT = 0.2  # the most by which a density changes in one iteration
LEAST_DIVISOR = 1e-3  # in place of smaller densities where the sensitivity filter divides by them


@dataclass(frozen=True)
class SimpOptions:
    """How a plate is optimised: SIMP (stiffness is a power of density) with optimality criteria.

    >>> SimpOptions(volume_fraction=1.5)
    Traceback (most recent call last):
    ...
    ValueError: volume_fraction must be between 0 and 1, both excluded; got 1.5
    """

    volume_fraction: float = 0.5  #: mean density, in (0, 1)
    penalty: float = 3.0  #: the power, at least 1; a greater one drives densities to 0 and 1
    filter_radius: float = 2.4  #: in elements, at least 1, which is no filter
    filtering: Literal["sensitivity", "density"] = "sensitivity"  #: what the filter smooths
    tolerance: float = 0.01  #: stop when no density changes by more
    max_iterations: int = 1000  #: stop after so many in any case

    def __post_init__(self) -> None:
        if not 0 < self.volume_fraction < 1:
            raise ValueError(f"volume_fraction must be between 0 and 1, both excluded; got {self.volume_fraction}")
        if not 1 <= self.penalty < math.inf:
            raise ValueError(f"penalty must be finite and at least 1; got {self.penalty}")
        if not 1 <= self.filter_radius < math.inf:
            raise ValueError(f"filter_radius must be finite and at least 1 element; got {self.filter_radius}")
        if self.filtering not in _FILTERS:
            raise ValueError(f"filtering must be one of {sorted(_FILTERS)}; got {self.filtering!r}")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0; got {self.tolerance}")
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1; got {self.max_iterations}")


class Design(NamedTuple):
    """An optimised plate."""

    density: np.ndarray  #: (height, width), in [0, 1]
    stress: np.ndarray  #: von Mises stress at the centres of the elements, (height, width)
    compliance: float  #: work of the force, fᵀu
    iterations: int  #: how many it took


def youngs_modulus(density: np.ndarray, penalty: float) -> np.ndarray:
    """Young's modulus of elements, ``E(ρ) = E_void + ρᵖ (1 − E_void)``."""
    return VOID_MODULUS + (1 - VOID_MODULUS) * density**penalty


def compliance_and_gradient(
    plate: Plate, force: np.ndarray, density: np.ndarray, penalty: float
) -> tuple[float, np.ndarray]:
    """Compliance and its derivative by each density, ``(height, width)``."""
    # With K(ρ) u = f,  c = fᵀu = Σ_e E(ρ_e) u_eᵀ K_0 u_e;  as f is fixed, K' u + K u' = 0, so
    # dc/dρ_e = fᵀu' = uᵀK u' = −uᵀK' u = −E'(ρ_e) u_eᵀ K_0 u_e
    displacement = plate.displacement(youngs_modulus(density, penalty), force)
    slope = (1 - VOID_MODULUS) * penalty * density ** (penalty - 1)
    return float((force * displacement).sum()), -slope * plate.unit_work(displacement)


class Filter(ABC):
    """Keeps details finer than a radius out of a design, by means over neighbours weighted ``radius − distance``.

    :param shape: ``(height, width)``.
    :param radius: in elements.
    """

    def __init__(self, shape: tuple[int, int], radius: float) -> None:
        offsets = np.arange(1 - math.ceil(radius), math.ceil(radius))
        self._weights = np.maximum(0.0, radius - np.hypot(offsets[:, None], offsets))
        self._totals = self._weighted_sum(np.ones(shape))

    def _weighted_sum(self, field: np.ndarray) -> np.ndarray:
        return convolve(field, self._weights, mode="constant")

    @abstractmethod
    def density(self, design: np.ndarray) -> np.ndarray:
        """Densities from the variables that the optimiser moves."""

    @abstractmethod
    def gradient(self, design: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """What the optimiser takes for the compliance's derivative by the design, from that by the densities."""

    @abstractmethod
    def volume_gradient(self) -> np.ndarray:
        """Derivative of the sum of the densities by the design."""


class SensitivityFilter(Filter):
    """Leaves the design as it is and smooths the derivative, ``Σ_j w_ij x_j g_j / (x_i Σ_j w_ij)``."""

    def density(self, design: np.ndarray) -> np.ndarray:
        return design

    def gradient(self, design: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return self._weighted_sum(design * gradient) / (self._totals * np.maximum(design, LEAST_DIVISOR))

    def volume_gradient(self) -> np.ndarray:
        return np.ones_like(self._totals)


class DensityFilter(Filter):
    """Smooths the design, ``ρ_i = Σ_j w_ij x_j / Σ_j w_ij``; derivatives follow by the chain rule."""

    def density(self, design: np.ndarray) -> np.ndarray:
        return self._weighted_sum(design) / self._totals

    def gradient(self, design: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return self._weighted_sum(gradient / self._totals)  # the weights are symmetric

    def volume_gradient(self) -> np.ndarray:
        return self._weighted_sum(1 / self._totals)


_FILTERS: dict[str, type[Filter]] = {"density": DensityFilter, "sensitivity": SensitivityFilter}


def optimise(plate: Plate, force: np.ndarray, options: SimpOptions) -> Design:
    """The densities of least compliance under a force, from a uniform start.

    :param plate: what is held.
    :param force: at the nodes, ``(height + 1, width + 1, 2)``.
    :param options: how.
    """
    filtering = _FILTERS[options.filtering](plate.shape, options.filter_radius)
    volume_gradient = filtering.volume_gradient()
    design = np.full(plate.shape, options.volume_fraction)
    iterations, change = 0, math.inf
    with threadpool_limits(limits=1, user_api="blas"):  # a narrow band gains nothing from threads
        while change > options.tolerance and iterations < options.max_iterations:
            _, gradient = compliance_and_gradient(plate, force, filtering.density(design), options.penalty)
            gain = -filtering.gradient(design, gradient) / volume_gradient
            updated = _optimality_step(design, gain, volume_gradient, options.volume_fraction * design.size)
            iterations, change, design = iterations + 1, np.abs(updated - design).max(), updated
        return _describe(plate, force, filtering.density(design), options.penalty, iterations)


def _optimality_step(design: np.ndarray, gain: np.ndarray, volume_gradient: np.ndarray, volume: float) -> np.ndarray:
    """``x √(gain / λ)`` within the move limit and [0, 1], with the multiplier λ that gives the volume."""
    least, most = np.maximum(design - MOVE_LIMIT, 0.0), np.minimum(design + MOVE_LIMIT, 1.0)
    target = design * np.sqrt(gain)
    # At λ = max(gain) nothing grows, towards λ = 0 all does; the volume falls in between as λ rises
    low, high = 0.0, gain.max()
    for _ in range(50):
        middle = (low + high) / 2
        updated = np.clip(target / math.sqrt(middle), least, most)
        if (volume_gradient * updated).sum() > volume:
            low = middle
        else:
            high = middle
    return updated


def _describe(plate: Plate, force: np.ndarray, density: np.ndarray, penalty: float, iterations: int) -> Design:
    modulus = youngs_modulus(density, penalty)
    displacement = plate.displacement(modulus, force)
    stress = plate.von_mises_stress(modulus, displacement)
    return Design(density, stress, float((force * displacement).sum()), iterations)
