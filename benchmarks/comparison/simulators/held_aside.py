"""Simulators of the problems that nobody looks at while the package is developed.

They are of the same kinds as those in development.py, by other equations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from comparison.simulators.tools import between, grid, inputs, new_generator, runge_kutta, second_difference, with_noise


def rod(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: a warm spot spreads on a line that loses heat; inputs place, width and two rates."""
    X = inputs(n, 4, new_generator(seed))
    place, width, diffusivity, loss = (
        each[:, None, None] for each in between(X, [(0.35, 0.65), (0.08, 0.2), (0.02, 0.08), (0.0, 2.0)])
    )
    points, times = grid(0, 1, 48), grid(0.05, 0.5, 20)[:, None]
    variance = width.square() + 2 * diffusivity * times
    height = width / variance.sqrt() * torch.exp(-loss * times)
    return X, height * torch.exp(-0.5 * (points - place).square() / variance)


def shocks(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Moving fronts: two shocks of the viscous Burgers equation that merge (Cole and Hopf); inputs as below."""
    X = inputs(n, 4, new_generator(seed))
    logarithm, middle, first, gap = between(X, [(-5.0, -3.8), (0.4, 0.7), (0.05, 0.25), (0.1, 0.3)])
    viscosity = logarithm.exp()[:, None, None]
    points, times = grid(0, 1, 60), grid(0.0, 0.7, 30)[:, None]
    states = torch.stack([torch.ones_like(middle), middle, 0.1 * torch.ones_like(middle)])
    # φ = Σ exp(−(c_i x − ½ c_i² t − b_i)/(2ν)), u = −2ν φ_x/φ, with fronts at `first` and `first + gap` at t = 0
    offset_2 = (states[1] - states[0]) * first
    offset_3 = offset_2 + (states[2] - states[1]) * (first + gap)
    offsets = torch.stack([torch.zeros_like(first), offset_2, offset_3])
    c, b = states[..., None, None], offsets[..., None, None]
    shares = torch.softmax(-(c * points - 0.5 * c.square() * times - b) / (2 * viscosity), dim=0)
    return X, (c * shares).sum(0)


def interference(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Travelling waves: two sources whose rings meet; inputs wave number, distance of the sources and phase."""
    X = inputs(n, 3, new_generator(seed))
    number, distance, phase = (each[:, None, None] for each in between(X, [(12.0, 20.0), (0.2, 0.6), (0.0, 2.0)]))
    across, along = grid(0, 1, 30)[:, None], grid(0.1, 1, 30)
    field = 0.0
    for side, shift in ((-0.5, 0.0), (0.5, phase)):
        radius = ((across - 0.5 - side * distance).square() + along.square()).sqrt()
        field = field + torch.cos(number * radius - shift) / radius.sqrt()
    return X, field


def ring(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A ring on a square with noise of 15 %; inputs its place, its radius and how thick it is."""
    generator = new_generator(seed)
    X = inputs(n, 4, generator)
    across, along, radius, width = (
        each[:, None, None] for each in between(X, [(0.4, 0.6), (0.4, 0.6), (0.15, 0.3), (0.06, 0.12)])
    )
    points = grid(0, 1, 30)
    distance = ((points[:, None] - across).square() + (points - along).square()).sqrt()
    return X, with_noise(torch.exp(-0.5 * ((distance - radius) / width).square()), 0.15, generator)


def predators(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy curves: prey and predators over time (Lotka, Volterra); inputs two rates and the first prey."""
    generator = new_generator(seed)
    X = inputs(n, 3, generator)
    growth, death, first = between(X, [(0.8, 1.4), (0.6, 1.0), (0.5, 1.5)])

    def rate(state: Tensor) -> Tensor:
        prey, predator = state
        return torch.stack([prey * (growth - predator), predator * (prey - death)])

    states = runge_kutta(rate, torch.stack([first, 0.5 * torch.ones_like(first)]), 0.02, 600, 10)
    return X, with_noise(states.permute(2, 1, 0).contiguous(), 0.08, generator)


def bell_chirp(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Curves under a bell whose frequency grows exponentially; inputs frequency, growth and the bell's place."""
    X = inputs(n, 3, new_generator(seed))
    frequency, growth, place = (each[:, None] for each in between(X, [(1.0, 1.6), (0.6, 1.2), (0.8, 1.2)]))
    times = grid(0, 2, 240)
    phase = 2 * math.pi * frequency * torch.expm1(growth * times) / growth
    return X, torch.exp(-0.5 * ((times - place) / 0.4).square()) * torch.sin(phase)


def gray_scott(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Reaction and diffusion: two substances on a line (Gray, Scott); inputs feed, kill and width of the first spot."""
    X = inputs(n, 3, new_generator(seed))
    feed, kill, width = (each[:, None] for each in between(X, [(0.03, 0.045), (0.058, 0.062), (4.0, 9.0)]))
    places = torch.arange(100, dtype=torch.float64)
    v = 0.5 * torch.exp(-0.5 * ((places - 35) / width).square())
    u = 1 - v
    kept = []
    for number in range(1, 1201):
        eaten = u * v.square()
        u = u + 0.6 * second_difference(u, 1.0) * 0.5 - eaten + feed * (1 - u)
        v = v + 0.15 * second_difference(v, 1.0) + eaten - (feed + kill) * v
        if number % 400 == 0:
            kept.append(torch.stack([u, v], dim=1))
    return X, torch.stack(kept, dim=1)


def stokes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A boundary layer: fluid over a plate that swings (Stokes); inputs viscosity, frequency and amplitude."""
    X = inputs(n, 3, new_generator(seed))
    logarithm, frequency, amplitude = (
        each[:, None, None] for each in between(X, [(-7.0, -4.5), (0.5, 1.5), (0.5, 1.5)])
    )
    heights, times = grid(0, 1, 40), grid(0, 6, 25)[:, None]
    decay = heights * (frequency / (2 * logarithm.exp())).sqrt()
    return X, amplitude * torch.exp(-decay) * torch.cos(frequency * times - decay)


def friedman(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Friedman's function with eight sets of coefficients and a little noise; of 25 inputs five matter."""
    generator = new_generator(seed)
    X = inputs(n, 25, generator)
    fixed = new_generator(12345)  # the same family in every split
    weights = 0.5 + torch.rand(8, 4, generator=fixed, dtype=torch.float64)
    bend = 0.6 + 0.8 * torch.rand(8, generator=fixed, dtype=torch.float64)
    terms = [
        10 * torch.sin(math.pi * bend * (X[:, 0] * X[:, 1])[:, None]) * weights[:, 0],
        20 * (X[:, 2] - 0.5).square()[:, None] * weights[:, 1],
        10 * X[:, 3, None] * weights[:, 2],
        5 * X[:, 4, None] * weights[:, 3],
    ]
    return X, with_noise(sum(terms), 0.02, generator)  # type: ignore[arg-type]


def spill(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A chemical spilt twice into a channel, at 5 places and 20 times (Bliznyuk et al.); of 20 inputs four matter."""
    X = inputs(n, 20, new_generator(seed))
    mass, diffusivity, place, time = (
        each[:, None, None] for each in between(X, [(7.0, 13.0), (0.02, 0.12), (0.01, 3.0), (30.01, 30.295)])
    )
    points, times = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]).double()[:, None], grid(5, 60, 20)

    def puff(along: Tensor, since: Tensor) -> Tensor:
        is_there = since > 0
        spread = 4 * diffusivity * torch.where(is_there, since, 1.0)
        return is_there * mass / (math.pi * spread).sqrt() * torch.exp(-along.square() / spread)

    both = puff(points.expand(5, 20), times) + puff(points - place, times - time)
    return X, math.sqrt(4 * math.pi) * both


def robot_arm(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A plane arm of three links: where its hand is, how far from the shoulder, and its power; six inputs."""
    X = inputs(n, 6, new_generator(seed))
    angles = [1.2 * math.pi * each for each in between(X, [(0.0, 1.0)] * 3)]
    lengths = [0.4 + 0.6 * each for each in X.T[3:]]
    across = along = turned = torch.zeros_like(X[:, 0])
    for angle, length in zip(angles, lengths, strict=True):
        turned = turned + angle
        across, along = across + length * torch.cos(turned), along + length * torch.sin(turned)
    reach = (across.square() + along.square()).sqrt()
    power = 500 * (lengths[0] * lengths[1]) * torch.exp(-angles[0]) + 20 * lengths[2].square()
    return X, torch.stack([across, along, 100 * reach, power], dim=1)


def tides(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Five noisy series over time: tides of three periods that reach each gauge late and at its own height."""
    generator = new_generator(seed)
    X = (20 * torch.rand(n, 1, generator=generator, dtype=torch.float64)).sort(0).values
    delay = 0.5 * torch.rand(5, generator=generator, dtype=torch.float64)
    heights = 0.5 + torch.rand(3, 5, generator=generator, dtype=torch.float64)
    periods = (1.9, 3.1, 7.3)
    Y = sum(
        height * torch.sin(2 * math.pi * (X - delay) / period) for period, height in zip(periods, heights, strict=True)
    )
    return X, with_noise(Y, 0.1, generator)  # type: ignore[arg-type]
