"""Topology optimisation: where to put a given amount of material so that a plate is as stiff as possible.

The method and its constants are those of E. Andreassen, A. Clausen, M. Schevenels, B. S. Lazarov and O. Sigmund,
*Efficient topology optimization in MATLAB using 88 lines of code* (Structural and Multidisciplinary Optimization 43,
2011). The optimiser moves one design variable ``x`` in each element; a filter turns the variables into densities ``ρ``.
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

VOID_MODULUS = 1e-9  # Young's modulus of an empty element; above 0, so that the stiffness matrix is positive definite
MOVE_LIMIT = 0.2  # the most by which a design variable changes in one iteration
LEAST_DIVISOR = 1e-3  # the sensitivity filter divides by a design variable, or by this where the variable is smaller


@dataclass(frozen=True)
class SimpOptions:
    """The settings of the optimisation, which is SIMP (stiffness is a power of density) with optimality criteria.

    >>> SimpOptions(volume_fraction=1.5)
    Traceback (most recent call last):
    ...
    ValueError: volume_fraction must be between 0 and 1, both excluded; got 1.5
    """

    volume_fraction: float = 0.5  #: the mean density, between 0 and 1
    penalty: float = 3.0  #: the power, at least 1; greater powers drive the densities towards 0 and 1
    filter_radius: float = 2.4  #: the radius of the filter in elements, at least 1; 1 means no filter
    filtering: Literal["sensitivity", "density"] = "sensitivity"  #: what is filtered: derivatives or densities
    tolerance: float = 0.01  #: the optimisation ends when no design variable changes by more than this
    max_iterations: int = 1000  #: the optimisation ends after this number of iterations in any case

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
    """The result of an optimisation."""

    density: np.ndarray  #: density of each element, in [0, 1], ``(height, width)``
    stress: np.ndarray  #: von Mises stress at the centre of each element, ``(height, width)``
    compliance: float  #: the work done by the force, ``fᵀu``, which the optimisation makes small
    iterations: int  #: the number of iterations


def youngs_modulus(density: np.ndarray, penalty: float) -> np.ndarray:
    """Young's modulus of elements from their densities, ``E(ρ) = E_void + ρᵖ (1 − E_void)``.

    >>> youngs_modulus(np.array([0.0, 0.5, 1.0]), 3.0).round(4)
    array([0.   , 0.125, 1.   ])
    """
    return VOID_MODULUS + (1 - VOID_MODULUS) * density**penalty


def compliance_and_gradient(
    plate: Plate, force: np.ndarray, density: np.ndarray, penalty: float
) -> tuple[float, np.ndarray]:
    """The compliance of a plate, and its derivative by the density of each element, ``(height, width)``.

    :param plate: the plate, which knows the displacements that are held.
    :param force: the force at each node, ``(height + 1, width + 1, 2)``.
    :param density: the density of each element, ``(height, width)``.
    :param penalty: the power in :func:`youngs_modulus`.
    """
    # With K(ρ) u = f,  c = fᵀu = Σ_e E(ρ_e) u_eᵀ K_0 u_e;  as f is fixed, K' u + K u' = 0, so
    # dc/dρ_e = fᵀu' = uᵀK u' = −uᵀK' u = −E'(ρ_e) u_eᵀ K_0 u_e
    displacement = plate.displacement(youngs_modulus(density, penalty), force)
    slope = (1 - VOID_MODULUS) * penalty * density ** (penalty - 1)
    return float((force * displacement).sum()), -slope * plate.unit_work(displacement)


class Filter(ABC):
    """Keeps details that are finer than a radius out of a design.

    It averages over the neighbours j of each element i, with coefficients ``c_ij = max(0, radius − distance)``.

    :param shape: the number of elements, ``(height, width)``.
    :param radius: the radius in elements.
    """

    def __init__(self, shape: tuple[int, int], radius: float) -> None:
        offsets = np.arange(1 - math.ceil(radius), math.ceil(radius))
        self._coefficients = np.maximum(0.0, radius - np.hypot(offsets[:, None], offsets))
        self._totals = self._sum(np.ones(shape))

    def _sum(self, field: np.ndarray) -> np.ndarray:
        """``Σ_j c_ij field_j`` for each element i, ``(height, width)``."""
        return convolve(field, self._coefficients, mode="constant")

    @abstractmethod
    def density(self, variables: np.ndarray) -> np.ndarray:
        """The densities that belong to the design variables, ``(height, width)``."""

    @abstractmethod
    def gradient(self, variables: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """What the optimiser uses as the derivative of the compliance by the design variables, ``(height, width)``.

        :param variables: the design variables, ``(height, width)``.
        :param gradient: the derivative of the compliance by the densities, ``(height, width)``.
        """

    @abstractmethod
    def volume_gradient(self) -> np.ndarray:
        """The derivative of the sum of all densities by the design variables, ``(height, width)``."""


class SensitivityFilter(Filter):
    """Takes the variables for densities and averages the derivatives g: ``Σ_j c_ij x_j g_j / (x_i Σ_j c_ij)``."""

    def density(self, variables: np.ndarray) -> np.ndarray:
        return variables

    def gradient(self, variables: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return self._sum(variables * gradient) / (self._totals * np.maximum(variables, LEAST_DIVISOR))

    def volume_gradient(self) -> np.ndarray:
        return np.ones_like(self._totals)


class DensityFilter(Filter):
    """Averages the variables, ``ρ_i = Σ_j c_ij x_j / Σ_j c_ij``. The derivatives follow by the chain rule."""

    def density(self, variables: np.ndarray) -> np.ndarray:
        return self._sum(variables) / self._totals

    def gradient(self, variables: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return self._sum(gradient / self._totals)  # Σ_i c_ij g_i / Σ_k c_ik, with c_ij = c_ji

    def volume_gradient(self) -> np.ndarray:
        return self._sum(1 / self._totals)


_FILTERS: dict[str, type[Filter]] = {"density": DensityFilter, "sensitivity": SensitivityFilter}


def optimise(plate: Plate, force: np.ndarray, options: SimpOptions) -> Design:
    """The densities of least compliance under a force. The optimisation starts with the same density everywhere.

    :param plate: the plate, which knows the displacements that are held.
    :param force: the force at each node, ``(height + 1, width + 1, 2)``.
    :param options: the settings of the optimisation.

    >>> held = np.zeros((5, 9, 2), dtype=bool)
    >>> held[:, 0] = True
    >>> force = np.zeros(held.shape)
    >>> force[2, -1, 1] = -1.0  # downwards, in the middle of the right edge
    >>> design = optimise(Plate(held), force, SimpOptions(volume_fraction=0.4))
    >>> design.density.shape, round(float(design.density.mean()), 6)
    ((4, 8), 0.4)
    """
    filtering = _FILTERS[options.filtering](plate.shape, options.filter_radius)
    volume_gradient = filtering.volume_gradient()
    variables = np.full(plate.shape, options.volume_fraction)
    volume = options.volume_fraction * variables.size
    iterations, change = 0, math.inf
    with threadpool_limits(limits=1, user_api="blas"):  # threads do not speed up the factorisation of a narrow band
        while change > options.tolerance and iterations < options.max_iterations:
            _, gradient = compliance_and_gradient(plate, force, filtering.density(variables), options.penalty)
            gain = -filtering.gradient(variables, gradient) / volume_gradient
            updated = _optimality_step(variables, gain, volume_gradient, volume)
            iterations, change, variables = iterations + 1, np.abs(updated - variables).max(), updated
        return _describe(plate, force, filtering.density(variables), options.penalty, iterations)


def _optimality_step(variables: np.ndarray, gain: np.ndarray, volume_gradient: np.ndarray, volume: float) -> np.ndarray:
    """The design variables after one iteration, ``(height, width)``.

    They are ``x √(gain / λ)``, clipped to the move limit and to ``[0, 1]``. The multiplier λ is found by bisection: it
    is the one for which the densities have the required volume.

    :param gain: the decrease of the compliance for each unit of volume that is added, ``(height, width)``.
    """
    least, most = np.maximum(variables - MOVE_LIMIT, 0.0), np.minimum(variables + MOVE_LIMIT, 1.0)
    target = variables * np.sqrt(gain)
    # At λ = max(gain) no variable grows, and near λ = 0 all of them do. In between, the volume falls as λ rises.
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
