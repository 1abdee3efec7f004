"""Simulators of further blind problems: they were written later, when those in blind.py had been looked at.

Who wrote them saw only baselines. They were first run on 2026-11-19, and have been looked at since.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import solveh_banded
from scipy.special import wofz
from torch import Tensor

from comparison.simulators.tools import between, grid, inputs, new_generator, runge_kutta


def valve(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise-free curves: the voltage of a valve that starts to swing by itself while it is driven (van der Pol).

    Inputs are how far from linear the valve is, the first voltage and the strength of the drive.
    """
    X = inputs(n, 3, new_generator(seed))
    bend, first, drive = between(X, [(0.4, 2.5), (0.2, 1.6), (0.0, 0.8)])

    def rate(state: Tensor) -> Tensor:
        voltage, change, time = state
        force = bend * (1 - voltage.square()) * change - voltage + drive * torch.cos(1.7 * time)
        return torch.stack([change, force, torch.ones_like(time)])

    states = runge_kutta(rate, torch.stack([first, torch.zeros_like(first), torch.zeros_like(first)]), 0.02, 700, 4)
    return X, states[:, 0].T.contiguous()


def absorption(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The light that two mixed gases let through at 240 wave numbers, with eight lines (Voigt) and noise of 1 %.

    Inputs are the temperature, the pressure, the amounts of the gases and the speed by which all lines are shifted.
    Temperature sets how wide and, by their lower level, how strong lines are; pressure widens and shifts them.
    """
    generator = new_generator(seed)
    X = inputs(n, 5, generator)
    temperature, pressure, first, second, shift = (
        each[:, None] for each in between(X, [(220.0, 380.0), (0.1, 1.0), (0.1, 1.0), (0.1, 1.0), (-0.12, 0.12)])
    )
    # centre, strength, lower level in kelvin, half width by pressure, shift by pressure; five of the first gas
    lines = torch.tensor(
        [
            [0.6, 0.40, 200, 0.10, -0.03],
            [1.3, 0.25, 900, 0.07, -0.02],
            [2.1, 0.60, 500, 0.12, -0.05],
            [3.3, 0.15, 1500, 0.08, 0.01],
            [4.4, 0.35, 700, 0.10, -0.04],
            [1.6, 0.50, 300, 0.05, -0.01],
            [2.9, 0.20, 1200, 0.06, -0.02],
            [3.9, 0.45, 400, 0.05, 0.02],
        ],
        dtype=torch.float64,
    )
    centre, strength, level, width, moved = lines.T
    amount = torch.cat([first.expand(n, 5), second.expand(n, 3)], dim=1)
    strength = amount * strength * torch.exp(-level * (1 / temperature - 1 / 296)) * (296 / temperature)
    doppler = 0.05 * (temperature / 296).sqrt()[..., None]
    lorentz = (width * pressure * (296 / temperature) ** 0.7)[..., None]
    offset = grid(0, 5, 240) - (centre + moved * pressure + shift)[..., None]
    profile = torch.from_numpy(wofz(torch.complex(offset / doppler, lorentz / doppler).numpy()).real)
    depth = (strength[..., None] * profile / (doppler * math.sqrt(math.pi))).sum(1)
    through = torch.exp(-0.5 * depth)
    return X, through + 0.01 * torch.randn(through.shape, generator=generator, dtype=through.dtype)


def seepage(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: the head of water that seeps through uneven ground (Darcy), by finite volumes.

    Inputs are the weights of four cosines that make up the logarithm of the conductivity. The head is one at the left
    and zero at the right, nothing flows through the other sides, and rain falls on all of the ground.
    """
    X = inputs(n, 4, new_generator(seed))
    size = 30
    points = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    waves = torch.tensor([[1, 0], [0, 1], [1, 1], [2, 1]], dtype=torch.float64)
    across, along = torch.cos(math.pi * waves[:, :1] * points), torch.cos(math.pi * waves[:, 1:] * points)
    weights = torch.stack(between(X, [(-0.8, 0.8)] * 4), dim=1)
    conductivity = torch.einsum("nk,kx,ky->nxy", weights, across, along).exp().numpy()
    return X, torch.from_numpy(np.stack([_head(each) for each in conductivity]))


def _head(conductivity: np.ndarray) -> np.ndarray:
    """The head in each cell of a square, given the conductivities of the cells, ``(size, size)``."""
    size = len(conductivity)
    across = 2 / (1 / conductivity[1:] + 1 / conductivity[:-1])
    along = 2 / (1 / conductivity[:, 1:] + 1 / conductivity[:, :-1])
    diagonal = np.zeros((size, size))
    diagonal[1:] += across
    diagonal[:-1] += across
    diagonal[:, 1:] += along
    diagonal[:, :-1] += along
    diagonal[0] += 2 * conductivity[0]
    diagonal[-1] += 2 * conductivity[-1]
    # the lower diagonals of the matrix: itself, the neighbour along and the neighbour across
    bands = np.zeros((size + 1, size * size))
    bands[0] = diagonal.ravel()
    bands[1] = np.pad(-along, ((0, 0), (0, 1))).ravel()
    bands[size] = np.pad(-across, ((0, 1), (0, 0))).ravel()
    source = np.full((size, size), 1 / size**2)
    source[0] += 2 * conductivity[0]
    return solveh_banded(bands, source.ravel(), lower=True).reshape(size, size)


def tower(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Resonances: how much five storeys of a tower amplify shaking of the ground, in decades, at 100 frequencies.

    Inputs are the stiffness of each storey, the share of the energy that is lost and the mass on the roof.
    """
    X = inputs(n, 7, new_generator(seed))
    *stiffness, loss, roof = between(X, [(0.7, 1.3)] * 5 + [(0.04, 0.12), (0.0, 1.0)])
    mass = torch.ones(n, 5, dtype=torch.float64)
    mass[:, -1] += roof
    # a spring below each storey: its stretch is the difference of two floors
    stretch = torch.eye(5, dtype=torch.float64) - torch.diag(torch.ones(4, dtype=torch.float64), -1)
    springs = torch.einsum("si,ns,sj->nij", stretch, torch.stack(stiffness, dim=1), stretch)
    frequencies = grid(math.log(0.15), math.log(2.4), 100).exp()
    inertia = frequencies.square()[:, None, None] * torch.diag_embed(mass)[:, None]
    dynamic = springs[:, None] * torch.complex(torch.ones_like(loss), loss)[:, None, None, None] - inertia
    pushed = inertia.sum(-1).to(dynamic.dtype)
    moved = 1 + torch.linalg.solve(dynamic, pushed[..., None])[..., 0]
    return X, torch.log10(moved.abs()).transpose(1, 2).contiguous()


def nose(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A noisy table: 20 gas sensors of different kinds, whose noise is from 2 % to 80 % of what they vary.

    Inputs are the concentrations of three gases and the humidity. Sensors respond by power laws, some saturate, and
    those that come later in the table are noisier.
    """
    generator = new_generator(seed)
    X = inputs(n, 4, generator)
    gases, humidity = 10 ** torch.stack(between(X, [(-1.0, 1.0)] * 3), dim=1), X[:, 3:]
    fixed = new_generator(2024)  # the same array in every split
    affinity = torch.exp(1.2 * torch.randn(3, 20, generator=fixed, dtype=torch.float64))
    power, saturation, wet = torch.rand(3, 20, generator=fixed, dtype=torch.float64)
    bound = gases @ affinity / (1 + wet * humidity)
    response = (1 + bound) ** (0.2 + 0.6 * power) * (1 + 0.5 * wet * humidity)
    response = response / (1 + 0.3 * saturation * response)
    noise = response.std(0) * grid(math.log(0.02), math.log(0.8), 20).exp()
    return X, response + noise * torch.randn(response.shape, generator=generator, dtype=response.dtype)


def dosing(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """How much of a drug is in the blood each hour while four tablets are taken, measured to 5 %.

    Of 15 inputs four matter: how fast it is absorbed, how fast it is removed at most (Michaelis, Menten), the
    logarithm of the volume in which it is spread, and the dose.
    """
    generator = new_generator(seed)
    X = inputs(n, 15, generator)
    absorbed, most, logarithm, dose = between(X, [(0.2, 1.5), (4.0, 12.0), (math.log(15), math.log(40)), (60.0, 140.0)])
    volume = logarithm.exp()

    def rate(state: Tensor) -> Tensor:
        gut, blood = state
        removed = most * blood / (volume + blood)  # half of the most at one milligram in a litre
        return torch.stack([-absorbed * gut, absorbed * gut - removed])

    state, kept = torch.zeros(2, n, dtype=torch.float64), []
    for _ in range(4):
        state = state + torch.stack([dose, torch.zeros_like(dose)])
        states = runge_kutta(rate, state, 0.1, 120, 10)
        kept.append(states[:, 1] / volume)
        state = states[-1]
    curves = torch.cat(kept).T.contiguous()
    return X, curves * (1 + 0.05 * torch.randn(curves.shape, generator=generator, dtype=curves.dtype))


def echoes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Waves that arrive late and come back: the ground of three layers shakes, at 20 depths and 150 times.

    Inputs are the speeds of the layers, the depths of the two borders and the frequency of the pulse (Ricker). Stress
    and velocity are staggered; the top is free and the bottom lets waves out.
    """
    X = inputs(n, 6, new_generator(seed))
    upper, middle, lower, border, deeper, frequency = (
        each[:, None] for each in between(X, [(1.5, 1.9), (2.1, 2.6), (2.8, 3.4), (0.25, 0.4), (0.6, 0.75), (4.0, 6.0)])
    )
    n_cells, step = 200, 1e-3
    spacing = 1 / n_cells
    depths = spacing * (torch.arange(n_cells, dtype=torch.float64) + 0.5)
    speed = upper + (middle - upper) * torch.sigmoid((depths - border) / 0.01)
    speed = speed + (lower - middle) * torch.sigmoid((depths - deeper) / 0.01)
    stress = torch.zeros(n, n_cells, dtype=torch.float64)
    velocity = torch.zeros(n, n_cells + 1, dtype=torch.float64)  # at the borders of the cells
    kept = []
    for number in range(1, 1051):
        argument = (math.pi * frequency * (number * step - 0.2)).square()
        pulse = (1 - 2 * argument) * torch.exp(-argument)
        velocity[:, 1:-1] += step / spacing * (stress[:, 1:] - stress[:, :-1])
        velocity[:, :1] += step / spacing * (2 * stress[:, :1] + 100 * spacing * pulse)
        velocity[:, -1:] = -stress[:, -1:] / speed[:, -1:]
        stress += step / spacing * speed.square() * (velocity[:, 1:] - velocity[:, :-1])
        if number > 300 and number % 5 == 0:
            kept.append(velocity[:, :100:5].clone())
    return X, torch.stack(kept, dim=2)


def truss(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A cantilever of ten bars: how far its four free joints move and the stress in each bar; 18 outputs.

    Inputs are the sections of the bars, two loads downwards and one sideways: all of the 13 matter.
    """
    X = inputs(n, 13, new_generator(seed))
    *sections, first, second, sideways = between(X, [(0.5, 2.0)] * 10 + [(0.6, 1.4), (0.6, 1.4), (-0.5, 0.5)])
    joints = torch.tensor([[2, 1], [2, 0], [1, 1], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    bars = torch.tensor([[4, 2], [2, 0], [5, 3], [3, 1], [2, 3], [0, 1], [4, 3], [5, 2], [2, 1], [3, 0]])
    offset = joints[bars[:, 1]] - joints[bars[:, 0]]
    length = offset.norm(dim=1, keepdim=True)
    stretch = torch.zeros(10, 6, 2, dtype=torch.float64)
    numbers = torch.arange(10)
    stretch[numbers, bars[:, 1]] = offset / length
    stretch[numbers, bars[:, 0]] = -offset / length
    stretch = stretch[:, :4].reshape(10, 8)  # the last two joints are held by the wall
    stiffness = torch.einsum("bi,nb,bj->nij", stretch, torch.stack(sections, dim=1) / length[:, 0], stretch)
    loads = torch.zeros(n, 4, 2, dtype=torch.float64)
    loads[:, 1, 1], loads[:, 3, 1], loads[:, 0, 0] = -first, -second, sideways
    moved = torch.linalg.solve(stiffness, loads.reshape(n, 8, 1))[..., 0]
    return X, torch.cat([moved, moved @ stretch.T / length[:, 0]], dim=1)
