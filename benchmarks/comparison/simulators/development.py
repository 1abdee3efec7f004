"""Simulators of the problems that may be looked at while the package is developed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from comparison.simulators.tools import between, grid, inputs, new_generator, runge_kutta, second_difference, with_noise


def heat(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: two bumps that diffuse on a rod; inputs diffusivity and the place of one bump."""
    X = inputs(n, 2, new_generator(seed))
    modes = torch.arange(1, 81, dtype=torch.float64)
    points, times = torch.linspace(0, 1, 64).double(), torch.linspace(0.02, 0.3, 64).double()
    centre, diffusivity = 0.3 + 0.2 * X[:, 1], 0.05 * (1 + X[:, 0])
    start = torch.exp(-0.5 * ((points - centre[:, None]) / 0.1).square()) + torch.exp(
        -0.5 * ((points - 0.75) / 0.1).square()
    )
    sines = torch.sin(math.pi * modes[:, None] * points)
    coefficients = 2 * start @ sines.T / len(points)
    decay = torch.exp(-diffusivity[:, None, None] * (math.pi * modes).square() * times[:, None])
    return X, torch.einsum("nm,ntm,mx->ntx", coefficients, decay, sines)


def fronts(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Moving fronts: travelling waves of the viscous Burgers equation; inputs speed, viscosity and place."""
    X = inputs(n, 3, new_generator(seed))
    speed, viscosity, place = 1 + X[:, 0], 0.01 * 3 ** X[:, 1], 0.1 + 0.3 * X[:, 2]
    points, times = torch.linspace(0, 1, 128).double(), torch.linspace(0, 0.5, 64).double()
    offset = points - (place[:, None] + 0.5 * speed[:, None] * times)[..., None]
    height = speed[:, None, None]
    return X, 0.5 * height * (1 - torch.tanh(0.25 * height * offset / viscosity[:, None, None]))


def coarse_fronts(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """:func:`fronts` at every second place and every second time."""
    X, Y = fronts(n, seed)
    return X, Y[:, ::2, ::2]


def noisy_blob(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A bump that moves over a square, with noise of a tenth of the field's standard deviation."""
    generator = new_generator(seed)
    X = inputs(n, 3, generator)
    points = torch.linspace(0, 1, 40).double()
    place, width = 0.2 + 0.6 * X[:, :2], 0.08 + 0.08 * X[:, 2]
    across = torch.exp(-0.5 * ((points - place[..., None]) / width[:, None, None]).square())
    return X, with_noise(across[:, 0, :, None] * across[:, 1, None, :], 0.1, generator)


def membrane(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Standing waves: a square membrane some time after a blow; inputs place of the blow, speed and damping."""
    X = inputs(n, 4, new_generator(seed))
    across, along, speed, damping = between(X, [(0.2, 0.5), (0.2, 0.5), (0.8, 1.2), (0.1, 0.6)])
    modes, points = torch.arange(1, 9, dtype=torch.float64), grid(0.02, 0.98, 32)
    sines = torch.sin(math.pi * modes[:, None] * points)
    # A blow over a tenth of the side: high modes are struck less.
    softness = torch.exp(-0.5 * (0.1 * math.pi * modes).square())
    struck = [softness * torch.sin(math.pi * modes * place[:, None]) for place in (across, along)]
    frequency = math.pi * (modes[:, None].square() + modes.square()).sqrt()
    time = 0.9
    swing = torch.cos(speed[:, None, None] * frequency * time) * torch.exp(-damping * time)[:, None, None]
    return X, 4 * torch.einsum("na,nb,nab,ax,by->nxy", *struck, swing, sines, sines)


def pendulum(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy curves: the angle of a damped pendulum; inputs first angle, damping and length."""
    generator = new_generator(seed)
    X = inputs(n, 3, generator)
    angle, damping, length = between(X, [(0.5, 2.5), (0.1, 0.5), (0.7, 1.3)])

    def rate(state: Tensor) -> Tensor:
        position, velocity = state
        return torch.stack([velocity, -damping * velocity - 9.81 / length * torch.sin(position)])

    states = runge_kutta(rate, torch.stack([angle, torch.zeros_like(angle)]), 0.01, 600, 5)
    return X, with_noise(states[:, 0].T.contiguous(), 0.1, generator)


def chirp(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Curves whose frequency rises with time; inputs first frequency, its rise and the phase."""
    X = inputs(n, 3, new_generator(seed))
    frequency, rise, phase = (each[:, None] for each in between(X, [(0.8, 1.4), (0.5, 2.0), (0.0, 1.0)]))
    times = grid(0, 2, 200)
    return X, torch.sin(2 * math.pi * (frequency * times + 0.5 * rise * times.square()) + phase)


def fisher(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Reaction and diffusion: a population that spreads (Fisher, KPP); inputs growth, diffusivity, width, height."""
    X = inputs(n, 4, new_generator(seed))
    growth, diffusivity, width, height = (
        each[:, None] for each in between(X, [(4.0, 8.0), (0.5e-3, 2e-3), (0.03, 0.1), (0.2, 1.0)])
    )
    points = grid(0, 1, 101)
    u = height * torch.exp(-0.5 * ((points - 0.3) / width).square())
    kept, step = [], 1e-3
    for number in range(1, 2001):
        u = u + step * (diffusivity * second_difference(u, 0.01) + growth * u * (1 - u))
        if number % 250 == 0:
            kept.append(u[:, ::2])
    return X, torch.stack(kept, dim=1)


def layer(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A boundary layer: steady flow along a line with diffusion and a source; inputs Péclet number, source, ends."""
    X = inputs(n, 4, new_generator(seed))
    logarithm, source, left, right = (
        each[:, None] for each in between(X, [(math.log(5), math.log(100)), (-1.0, 1.0), (0.0, 1.0), (0.0, 1.0)])
    )
    # u' = u''/Pe + s has the solution s x + A + B e^{Pe (x − 1)}
    peclet, points = logarithm.exp(), grid(0, 1, 200)
    at_left = torch.exp(-peclet)
    amplitude = (right - left - source) / (1 - at_left)
    return X, source * points + left + amplitude * (torch.exp(peclet * (points - 1)) - at_left)


def borehole(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Water through a borehole by six formulas of one family; of 20 inputs eight matter."""
    X = inputs(n, 20, new_generator(seed))
    ranges = [
        (0.05, 0.15),
        (100.0, 50000.0),
        (63070.0, 115600.0),
        (990.0, 1110.0),
        (63.1, 116.0),
        (700.0, 820.0),
        (1120.0, 1680.0),
        (9855.0, 12045.0),
    ]
    radius, influence, upper, upper_head, lower, lower_head, length, conductivity = between(X, ranges)
    ratio = torch.log(influence / radius)
    flows = []
    for constant, weight in ((1.0, 1.0), (1.5, 1.0), (1.0, 50.0), (2.0, 200.0), (0.5, 5.0), (1.0, 400.0)):
        along = 2 * length * upper / (ratio * radius.square() * conductivity)
        resistance = constant + along + weight * upper / lower / 500
        flows.append(2 * math.pi * upper * (upper_head - lower_head) / (ratio * resistance))
    return X, torch.stack(flows, dim=1)


def sobol(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Products in the manner of Sobol's g, made smooth, with four sets of coefficients; of 40 inputs six matter."""
    X = inputs(n, 40, new_generator(seed))
    coefficients = torch.tensor(
        [[0, 1, 4.5, 9, 99, 99], [1, 0, 9, 4.5, 99, 99], [99, 4.5, 0, 1, 9, 99], [9, 99, 1, 0, 4.5, 1]],
        dtype=torch.float64,
    )
    hump = 1 + torch.sin(math.pi * (2 * X[:, None, :6] - 0.5))
    return X, ((hump + coefficients) / (1 + coefficients)).prod(-1)


def circuit(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A push-pull circuit without transformer: its voltage, and the logarithm of its gain; six inputs."""
    X = inputs(n, 6, new_generator(seed))
    b1, b2, f, c1, c2, beta = between(
        X, [(50.0, 150.0), (25.0, 70.0), (0.5, 3.0), (1.2, 2.5), (0.25, 1.2), (50.0, 300.0)]
    )
    load = beta * (c2 + 9)
    base = 12 * b2 / (b1 + b2)
    voltage = (base + 0.74) * load / (load + f) + 11.35 * f / (load + f) + 0.74 * f * load / ((load + f) * c1)
    return X, torch.stack([voltage, torch.log(load * c1 / (f * (b1 + b2)))], dim=1)


def series(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six noisy series over time that mix two random functions, of a slow and a fast scale."""
    generator = new_generator(seed)
    X = grid(0, 10, n)[:, None]
    functions = []
    for length in (2.0, 0.6):
        frequency = torch.randn(200, generator=generator, dtype=torch.float64) / length
        phase = 2 * math.pi * torch.rand(200, generator=generator, dtype=torch.float64)
        functions.append(torch.cos(X * frequency + phase).sum(1) / 10)
    mixing = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    return X, with_noise(torch.stack(functions, 1) @ mixing, 0.1, generator)
