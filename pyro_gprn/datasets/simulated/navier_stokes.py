"""The incompressible Navier–Stokes equations in a square with sliding walls: a projection method, staggered grid."""

from __future__ import annotations

import numpy as np
from scipy.fft import dctn, idctn

Array = np.ndarray


class CavityFlow:
    """Flow in the unit square that is driven by its four walls, for one run or for a batch of runs.

    ::

        ∂w/∂t + (w·∇)w = −∇p + ν ∇²w,    ∇·w = 0,    w = the wall's velocity at each wall

    The grid is staggered (Harlow and Welch 1965). The pressure is at the centres of ``grid × grid`` cells. Each
    component of the velocity is on the faces of the cells that it flows through. Both components are in one array,
    ``(…, 2, grid + 1, grid)``. The first axis of a component is its *own direction*, so that one formula serves both::

        velocity[..., 0, i, j]    along x, at x = i h,  y = (j + ½) h        h = 1 / grid
        velocity[..., 1, j, i]    along y, at y = j h,  x = (i + ½) h

    The differences in space conserve momentum. Viscosity is by central differences. Advection is by QUICK (Leonard
    1979), because the boundary layers of fast walls are thinner than a cell, and central differences would oscillate
    there.

    With ``R`` the forces and ``P`` the projection onto flows without divergence, the discrete equations are
    ``w' = P R(w)``. They are solved by Heun's Runge–Kutta method of order three. The order is two where a velocity
    changes its sign, because QUICK then changes its upwind side and ``R`` has a kink.

    The runs of a batch do not influence each other.

    :param grid: the number of cells along each side.
    :param viscosity: ``ν`` of each run, ``(…)``.
    :param walls: the speeds of the top and bottom walls, along x, and of the left and right walls, along y, ``(…, 4)``.

    >>> flow = CavityFlow(8, np.array(0.01), np.array([1.0, 0.0, 0.0, 0.0]))
    >>> velocity = flow.step(flow.at_rest(), 0.01)
    >>> velocity.shape, bool(abs(flow.divergence(velocity)).max() < 1e-12)
    ((2, 9, 8), True)
    """

    def __init__(self, grid: int, viscosity: Array, walls: Array) -> None:
        self.grid = grid
        self.viscosity = np.asarray(viscosity, dtype=float)[..., None, None, None]
        top, bottom, left, right = np.moveaxis(np.asarray(walls, dtype=float), -1, 0)
        # The speeds of the two walls that each component flows along, at the low and the high end of the second axis
        # of that component's array: (…, 2, 1, 1)
        self.low_wall = np.stack([bottom, left], -1)[..., None, None]
        self.high_wall = np.stack([top, right], -1)[..., None, None]
        # Cosines diagonalise ∇² with zero slope at the walls; its eigenvalues along each side are
        # −(2 − 2 cos(π k / grid)) / h². Constants have the eigenvalue 0; −∞ in its place removes them from a solution.
        one_side = -(2 - 2 * np.cos(np.pi * np.arange(grid) / grid)) * grid**2
        self._eigenvalues = one_side[:, None] + one_side
        self._eigenvalues[0, 0] = -np.inf

    def at_rest(self) -> Array:
        """The velocity of a fluid at rest, ``(…, 2, grid + 1, grid)``."""
        return np.zeros((*self.low_wall.shape[:-2], self.grid + 1, self.grid))

    def step(self, velocity: Array, time_step: float) -> Array:
        """The velocity one ``time_step`` later. Each stage of the method is projected, so none has any divergence."""
        first = self.forces(velocity)
        second = self.forces(self.project(velocity + time_step / 3 * first))
        third = self.forces(self.project(velocity + 2 * time_step / 3 * second))
        return self.project(velocity + time_step / 4 * (first + 3 * third))

    def forces(self, velocity: Array) -> Array:
        """Advection and viscosity, ``R(w) = −∇·(w w) + ν ∇²w``, shaped like ``velocity``; 0 on the walls."""
        diffusion = self.viscosity * self.grid
        # Along its own direction each component carries itself through the cells. Where it meets a wall its slope is 0,
        # because ∇·w = 0 and the other component does not change along the wall. So a value beyond the wall mirrors
        # the one inside.
        along = np.concatenate([velocity[..., 1:2, :], velocity, velocity[..., -2:-1, :]], axis=-2)
        flux_along = _flux(along, _mean(velocity), diffusion)
        # Across its own direction the other component carries it through the corners of the cells. Nothing is carried
        # through the side walls. Two ghost values beyond each wall make the value at the wall that of the wall.
        inside = velocity[..., 1:-1, :].swapaxes(-1, -2)
        ghosts_low = 2 * self.low_wall - inside[..., 1::-1, :]
        ghosts_high = 2 * self.high_wall - inside[..., :-3:-1, :]
        across = np.concatenate([ghosts_low, inside, ghosts_high], axis=-2)
        other = velocity[..., ::-1, :, :]
        flux_across = _flux(across, (other[..., 1:] + other[..., :-1]) / 2, diffusion)
        forces = np.zeros_like(velocity)
        forces[..., 1:-1, :] -= np.diff(flux_along, axis=-2)
        forces[..., 1:-1, :] -= np.diff(flux_across, axis=-2).swapaxes(-1, -2)
        forces *= self.grid
        return forces

    def project(self, velocity: Array) -> Array:
        """``P``: the velocity minus the gradient that removes its divergence, shaped like ``velocity``."""
        scaled = self.grid * self._potential(self.divergence(velocity))  # its differences are the gradient
        projected = velocity.copy()
        projected[..., 0, 1:-1, :] -= np.diff(scaled, axis=-2)
        projected[..., 1, 1:-1, :] -= np.diff(scaled, axis=-1).swapaxes(-1, -2)
        return projected

    def pressure(self, velocity: Array) -> Array:
        """The pressure at the centres of the cells, ``(…, grid, grid)``, x first: ``∇²p = ∇·R(w)``, with mean zero."""
        return self._potential(self.divergence(self.forces(velocity)))

    def at_centres(self, velocity: Array) -> Array:
        """Both components of the velocity at the centres of the cells, ``(…, 2, grid, grid)``, x first."""
        own_direction_first = _mean(velocity)
        along_x, along_y = own_direction_first[..., 0, :, :], own_direction_first[..., 1, :, :]
        return np.stack([along_x, along_y.swapaxes(-1, -2)], axis=-3)

    def divergence(self, velocity: Array) -> Array:
        """The divergence ``∇·w`` in each cell, a speed divided by a length, ``(…, grid, grid)``, x first."""
        outflow = np.diff(velocity, axis=-2)
        return self.grid * (outflow[..., 0, :, :] + outflow[..., 1, :, :].swapaxes(-1, -2))

    def _potential(self, source: Array) -> Array:
        """The solution of ``∇² φ = source`` with mean zero and zero slope at the walls."""
        return idctn(dctn(source, axes=(-2, -1)) / self._eigenvalues, axes=(-2, -1))


def stable_step(grid: int, viscosity: float, speed: float) -> float:
    """A time step with which :class:`CavityFlow` is stable.

    Take a wave on a uniform flow ``(u, v)``, and let ``c = (|u| + |v|) Δt / h`` and ``s = ν Δt / h²``. The factors by
    which waves of all lengths and directions grow show that the stages of a step stay bounded where
    ``c + 5.8 s ≤ 1.85``. In the cavity ``|u| + |v|`` is at most about the speed of the fastest wall, except in a few
    cells in the corners. For these the step is computed for 1.25 times that speed.

    :param grid: the number of cells along each side.
    :param viscosity: ``ν``.
    :param speed: the speed of the fastest wall.

    >>> round(stable_step(100, 0.01, 10.0), 6)
    0.001011
    """
    return 1.85 / (1.25 * speed * grid + 5.8 * viscosity * grid**2)


def _mean(values: Array) -> Array:
    """The mean of each value and the next along the last axis but one."""
    mean = values[..., 1:, :] + values[..., :-1, :]
    mean *= 0.5
    return mean


def _flux(carried: Array, carrier: Array, diffusion: Array) -> Array:
    """The flux ``carrier · φ − ν ∂φ`` of what is carried, ``φ``, along the last axis but one.

    QUICK: between two neighbours ``φ`` is their mean, less an eighth of the curvature at the upwind one.

    :param carried: ``m + 3`` values of ``φ``; the flux is between the inner ``m + 1`` of them.
    :param carrier: the velocity at the ``m`` places between these.
    :param diffusion: ``ν / h``.
    """
    slope = np.diff(carried, axis=-2)
    curvature = np.diff(slope, axis=-2)
    curvature *= 0.125  # in place, here and below, as a simulation spends most of its time in these lines
    flux = _mean(carried[..., 1:-1, :])
    flux *= carrier
    flux -= np.maximum(carrier, 0) * curvature[..., :-1, :]
    flux -= np.minimum(carrier, 0) * curvature[..., 1:, :]
    flux -= diffusion * slope[..., 1:-1, :]
    return flux
