"""Incompressible Navier–Stokes in a square cavity whose walls slide: a projection method on a staggered grid."""

from __future__ import annotations

import numpy as np
from scipy.fft import dctn, idctn

Array = np.ndarray


class CavityFlow:
    """Flow in the unit square, driven by its four walls, for one run or a batch of runs at once.

    ::

        ∂w/∂t + (w·∇)w = −∇p + ν ∇²w,    ∇·w = 0,    w = the wall's velocity at each wall

    The grid is staggered (Harlow and Welch 1965): pressure at the centres of ``grid × grid`` cells, each velocity
    component on the cell faces that it crosses. Both components live in one array, ``(…, 2, grid + 1, grid)``, each
    with its *own direction first*, so that one formula serves both::

        velocity[..., 0, i, j]    along x, at x = i h,  y = (j + ½) h        h = 1 / grid
        velocity[..., 1, j, i]    along y, at y = j h,  x = (i + ½) h

    In space momentum is conserved: central differences for viscosity, QUICK (Leonard 1979) for advection, since the
    boundary layers of fast walls are thinner than a cell and central advection would ring there. In time the discrete
    equations are ``w' = P R(w)``, with ``R`` the forces and ``P`` the projection onto flows without divergence; they
    are solved by Heun's Runge–Kutta method of order three (two where a velocity changes sign: QUICK turns round with
    it, and ``R`` has a kink). Nothing mixes the runs of a batch.

    :param grid: cells along each side.
    :param viscosity: ``ν`` of each run, ``(…)``.
    :param walls: speeds of the top and bottom walls (along x) and of the left and right ones (along y), ``(…, 4)``.

    >>> flow = CavityFlow(8, np.array(0.01), np.array([1.0, 0.0, 0.0, 0.0]))
    >>> velocity = flow.step(flow.at_rest(), 0.01)
    >>> velocity.shape, bool(abs(flow.divergence(velocity)).max() < 1e-12)
    ((2, 9, 8), True)
    """

    def __init__(self, grid: int, viscosity: Array, walls: Array) -> None:
        self.grid = grid
        self.viscosity = np.asarray(viscosity, dtype=float)[..., None, None, None]
        top, bottom, left, right = np.moveaxis(np.asarray(walls, dtype=float), -1, 0)
        # the walls beside each component, as that component's array has them: (…, 2, 1, 1)
        self.low_wall = np.stack([bottom, left], -1)[..., None, None]
        self.high_wall = np.stack([top, right], -1)[..., None, None]
        # ∇² with zero slope at the walls is diagonal in cosines, with eigenvalues −(2 − 2 cos(π k / grid)) / h² along
        # each side; the constant, which it maps to zero, is left out
        one_side = -(2 - 2 * np.cos(np.pi * np.arange(grid) / grid)) * grid**2
        self._eigenvalues = one_side[:, None] + one_side
        self._eigenvalues[0, 0] = -np.inf

    def at_rest(self) -> Array:
        """The velocity of a fluid at rest, ``(…, 2, grid + 1, grid)``."""
        return np.zeros((*self.low_wall.shape[:-2], self.grid + 1, self.grid))

    def step(self, velocity: Array, time_step: float) -> Array:
        """The velocity a ``time_step`` later; each stage is projected, and so has no divergence."""
        first = self.forces(velocity)
        second = self.forces(self.project(velocity + time_step / 3 * first))
        third = self.forces(self.project(velocity + 2 * time_step / 3 * second))
        return self.project(velocity + time_step / 4 * (first + 3 * third))

    def forces(self, velocity: Array) -> Array:
        """Advection and viscosity on each face, ``R(w) = −∇·(w w) + ν ∇²w``; zero on the walls."""
        diffusion = self.viscosity * self.grid
        # along: each component carries itself through the cells; by continuity its slope at its end walls is zero
        along = np.concatenate([velocity[..., 1:2, :], velocity, velocity[..., -2:-1, :]], axis=-2)
        flux_along = _flux(along, _mean(velocity), diffusion)
        # across: the other component carries it through the cells' corners; nothing is carried through the side
        # walls, and the ghosts behind them set its value there to the wall's
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
        """``P``: the velocity less the gradient that takes away its divergence."""
        scaled = self.grid * self._potential(self.divergence(velocity))  # its differences are the gradient
        projected = velocity.copy()
        projected[..., 0, 1:-1, :] -= np.diff(scaled, axis=-2)
        projected[..., 1, 1:-1, :] -= np.diff(scaled, axis=-1).swapaxes(-1, -2)
        return projected

    def pressure(self, velocity: Array) -> Array:
        """Pressure at the cell centres, ``(…, grid, grid)``, x first: ``∇²p = ∇·R(w)``, with mean zero."""
        return self._potential(self.divergence(self.forces(velocity)))

    def at_centres(self, velocity: Array) -> Array:
        """Both components at the cell centres, ``(…, 2, grid, grid)``, x first."""
        own_direction_first = _mean(velocity)
        along_x, along_y = own_direction_first[..., 0, :, :], own_direction_first[..., 1, :, :]
        return np.stack([along_x, along_y.swapaxes(-1, -2)], axis=-3)

    def divergence(self, velocity: Array) -> Array:
        """``∇·w`` in each cell (speed over length, not times ``h``), ``(…, grid, grid)``, x first."""
        outflow = np.diff(velocity, axis=-2)
        return self.grid * (outflow[..., 0, :, :] + outflow[..., 1, :, :].swapaxes(-1, -2))

    def _potential(self, source: Array) -> Array:
        """The solution of ``∇² φ = source`` with mean zero and zero slope at the walls."""
        return idctn(dctn(source, axes=(-2, -1)) / self._eigenvalues, axes=(-2, -1))


def stable_step(grid: int, viscosity: float, speed: float) -> float:
    """A time step that :class:`CavityFlow` is stable with, when no wall is faster than ``speed``.

    For waves on a uniform flow ``(u, v)`` the stages of a step stay bounded where ``c + 5.8 s ≤ 1.85``, with
    ``c = (|u| + |v|) Δt / h`` and ``s = ν Δt / h²`` (from the amplification factor, over all waves and directions). In
    the cavity ``|u| + |v|`` is at most about the speed of the fastest wall, but for a few cells in the corners; 1.25
    times that speed leaves room.
    """
    return 1.85 / (1.25 * speed * grid + 5.8 * viscosity * grid**2)


def _mean(values: Array) -> Array:
    """Halfway between neighbours along the last axis but one."""
    mean = values[..., 1:, :] + values[..., :-1, :]
    mean *= 0.5
    return mean


def _flux(carried: Array, carrier: Array, diffusion: Array) -> Array:
    """``carrier · φ − ν ∂φ`` along the last axis but one, at ``m`` places between ``m + 3`` values of ``φ``.

    QUICK: there ``φ`` is the mean of its two neighbours, less an eighth of the curvature at the upwind one.
    """
    slope = np.diff(carried, axis=-2)
    curvature = np.diff(slope, axis=-2)
    curvature *= 0.125  # in place, here and below: most of a simulation's time goes into these lines
    flux = _mean(carried[..., 1:-1, :])
    flux *= carrier
    flux -= np.maximum(carrier, 0) * curvature[..., :-1, :]
    flux -= np.minimum(carrier, 0) * curvature[..., 1:, :]
    flux -= diffusion * slope[..., 1:-1, :]
    return flux
