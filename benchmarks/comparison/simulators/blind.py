"""Simulators of the problems that were written without a look at how the package does on them.

They are of the kinds that users bring, by other equations than those in development.py and held_aside.py.
"""

from __future__ import annotations

import math

import torch
from scipy.special import exp1
from torch import Tensor

from comparison.simulators.tools import between, grid, inputs, new_generator, runge_kutta, with_noise


def plate(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: how far a plate on four supports bends under a load (Kirchhoff, Navier).

    Inputs are the place of the load, its width and the length of the plate.
    """
    X = inputs(n, 4, new_generator(seed))
    across, along, width, length = (
        each[:, None] for each in between(X, [(0.2, 0.8), (0.2, 0.8), (0.03, 0.15), (0.7, 1.5)])
    )
    modes, points = torch.arange(1, 16, dtype=torch.float64), grid(0.02, 0.98, 36)
    number, number_along = math.pi * modes, math.pi * modes / length
    load = torch.sin(number * across) * torch.exp(-0.5 * (number * width).square())
    load_along = torch.sin(number * along) * torch.exp(-0.5 * (number_along * width).square()) / length
    stiffness = (number.square()[:, None] + number_along.square()[:, None, :]).square()
    sines = torch.sin(number[:, None] * points)
    return X, 4e3 * torch.einsum("na,nb,nab,ax,by->nxy", load, load_along, 1 / stiffness, sines, sines)


def flood(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A sharp front: water drives oil out of a rock (Buckley, Leverett), by upwind differences.

    Inputs are the ratio of the viscosities, the water and the oil that cannot move, and the rate.
    """
    X = inputs(n, 4, new_generator(seed))
    logarithm, water, oil, rate = (
        each[:, None] for each in between(X, [(math.log(1), math.log(20)), (0.1, 0.25), (0.1, 0.3), (0.06, 0.12)])
    )
    porosity, n_cells, step = 0.25, 200, 5e-4
    mobile = 1 - water - oil
    share = torch.zeros(n, n_cells, dtype=torch.float64)
    at_left = torch.ones(n, 1, dtype=torch.float64)
    kept = []
    for number in range(1, 1001):
        flow = share.square() / (share.square() + (1 - share).square() / logarithm.exp())
        inflow = torch.cat([at_left, flow[:, :-1]], dim=1)
        share = share + step * n_cells * rate / (porosity * mobile) * (inflow - flow)
        if number % 50 == 0:
            kept.append((water + mobile * share)[:, ::4])
    return X, torch.stack(kept, dim=1)


def ripples(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Waves with dispersion: a hump of water falls apart in a channel, at 75 places and 40 times (Airy).

    Inputs are the depth, and the width and place of the hump.
    """
    X = inputs(n, 3, new_generator(seed))
    depth, width, place = (each[:, None] for each in between(X, [(0.1, 1.0), (0.4, 0.9), (4.0, 10.0)]))
    length = 20.0
    number = math.pi / length * torch.arange(1, 81, dtype=torch.float64)
    points, times = grid(0, length, 75), grid(0.1, 4, 40)
    frequency = (9.81 * number * torch.tanh(number * depth)).sqrt()
    height = 2 / length * math.sqrt(2 * math.pi) * width * torch.exp(-0.5 * (number * width).square())
    swing = torch.cos(frequency[:, None] * times[:, None])
    cosines = torch.cos(number[:, None] * points)
    return X, torch.einsum("nm,ntm,mx->ntx", height * torch.cos(number * place), swing, cosines)


def bump(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy curves: the acceleration of a quarter of a car after a bump, by a sensor with heavy-tailed errors.

    Inputs are the mass, spring and damper of the body, the stiffness of the tyre and the speed. The errors are
    Student's t with three degrees of freedom.
    """
    generator = new_generator(seed)
    X = inputs(n, 5, generator)
    mass, spring, damper, tyre, speed = between(
        X, [(250.0, 400.0), (15e3, 30e3), (800.0, 2000.0), (150e3, 220e3), (5.0, 15.0)]
    )
    wheel_mass, height, length = 40.0, 0.05, 1.0

    def rate(state: Tensor) -> Tensor:
        body, body_speed, wheel, wheel_speed, time = state
        turn = 2 * math.pi * (speed * time / length).clamp(max=1)
        road = 0.5 * height * (1 - torch.cos(turn))
        force = spring * (wheel - body) + damper * (wheel_speed - body_speed)
        wheel_force = tyre * (road - wheel) - force
        return torch.stack([body_speed, force / mass, wheel_speed, wheel_force / wheel_mass, torch.ones_like(time)])

    start = torch.zeros(5, n, dtype=torch.float64)
    states = runge_kutta(rate, start, 0.002, 600, 5)
    curves = torch.stack([rate(state)[1] for state in states], dim=1)
    normal = torch.randn(4, *curves.shape, generator=generator, dtype=torch.float64)
    errors = normal[0] / normal[1:].square().mean(0).sqrt()
    return X, curves + 0.05 * curves.std() * errors


def wing(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The wing of a light aircraft: its weight (Raymer), lift coefficient, lift slope and induced drag; ten inputs."""
    X = inputs(n, 10, new_generator(seed))
    area, fuel, aspect, sweep, pressure, taper, thickness, load_factor, gross, paint = between(
        X,
        [
            (150.0, 200.0),
            (220.0, 300.0),
            (6.0, 10.0),
            (-10.0, 10.0),
            (16.0, 45.0),
            (0.5, 1.0),
            (0.08, 0.18),
            (2.5, 6.0),
            (1700.0, 2500.0),
            (0.025, 0.08),
        ],
    )
    sweep = torch.deg2rad(sweep)
    structure = 0.036 * area**0.758 * fuel**0.0035 * pressure**0.006 * taper**0.04 * (load_factor * gross) ** 0.49
    shape = (aspect / sweep.cos().square()) ** 0.6 * (100 * thickness / sweep.cos()) ** -0.3
    lift = gross / (pressure * area)
    slope = 2 * math.pi * aspect / (2 + (4 + (aspect / sweep.cos()).square()).sqrt())
    drag = pressure * area * lift.square() / (math.pi * aspect * (0.95 - 0.2 * (taper - 0.6).square()))
    return X, torch.stack([structure * shape + area * paint, lift, slope, drag], dim=1)


def reactor(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A pipe in which A becomes B becomes C (Arrhenius): what is left of A, of B, and the heat, measured to 2 %.

    Of 24 inputs four matter: temperature, time in the pipe, feed and activity of the catalyst.
    """
    generator = new_generator(seed)
    X = inputs(n, 24, generator)
    temperature, time, feed, activity = between(X, [(340.0, 380.0), (4.0, 12.0), (1.0, 3.0), (0.6, 1.4)])
    inverse = (1 / temperature - 1 / 360) / 8.314
    first, second = 0.12 * activity * torch.exp(-60e3 * inverse), 0.04 * activity * torch.exp(-90e3 * inverse)
    left = torch.exp(-first * time)
    intermediate = first / (second - first) * (left - torch.exp(-second * time))
    heat = 80 * (1 - left) + 50 * (1 - left - intermediate)
    Y = feed[:, None] * torch.stack([left, intermediate, heat], dim=1)
    return X, Y * (1 + 0.02 * torch.randn(Y.shape, generator=generator, dtype=Y.dtype))


def epidemic(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Cases reported each second day of an epidemic (SEIR), whose noise grows with the root of their number.

    Inputs are the infections by one, the days until and while one infects, the first infections and the immune.
    """
    generator = new_generator(seed)
    X = inputs(n, 5, generator)
    reproduction, latent, infectious, logarithm, immune = between(
        X, [(1.8, 3.5), (2.0, 5.0), (3.0, 8.0), (math.log(1e-4), math.log(1e-3)), (0.0, 0.3)]
    )

    def rate(state: Tensor) -> Tensor:
        susceptible, exposed, infected = state
        infections = reproduction / infectious * susceptible * infected
        falling_ill = exposed / latent
        return torch.stack([-infections, infections - falling_ill, falling_ill - infected / infectious])

    first = logarithm.exp()
    states = runge_kutta(rate, torch.stack([1 - immune - first, first, torch.zeros_like(first)]), 0.25, 600, 8)
    cases = 30_000 * (states[:, 1] / latent).T.contiguous()  # three in ten of a town of 100 000 are reported
    errors = 2 * cases.sqrt() * torch.randn(cases.shape, generator=generator, dtype=cases.dtype)
    return X, (cases + errors).clamp(min=0)


def drawdown(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """How far a well lowers the water at six places and 40 times, beside a river (Theis, with an image of the well).

    Inputs are the transmissivity, the storativity, the rate of the pump and how far away the river is.
    """
    X = inputs(n, 4, new_generator(seed))
    transmissivity, storativity, rate, river = (
        each[:, None, None]
        for each in between(
            X, [(math.log(50), math.log(500)), (math.log(1e-4), math.log(1e-2)), (500.0, 1500.0), (220.0, 600.0)]
        )
    )
    transmissivity, storativity = transmissivity.exp(), storativity.exp()
    places = torch.tensor([10.0, 30, 60, 100, 150, 200]).double()[:, None]
    times = grid(math.log(0.02), math.log(10), 40).exp()

    def lowered(distance: Tensor) -> Tensor:
        argument = distance.square() * storativity / (4 * transmissivity * times)
        return rate / (4 * math.pi * transmissivity) * torch.from_numpy(exp1(argument.numpy()))

    return X, lowered(places) - lowered(2 * river - places)


def rooms(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The noisy temperature of eight rooms each hour: they follow the weather and the sun, each at its own pace."""
    generator = new_generator(seed)
    hours = torch.arange(n, dtype=torch.float64)
    delay, gain, noon = torch.rand(3, 8, generator=generator, dtype=torch.float64)
    delay, gain, noon = 3 * 10**delay, 15 * gain, 10 + 6 * noon
    sun = torch.cos(2 * math.pi * (hours[:, None] - noon) / 24).clamp(min=0)
    clear = torch.rand(1 + n // 24, generator=generator, dtype=torch.float64).repeat_interleave(24)[:n]
    changes = torch.randn(n, generator=generator, dtype=torch.float64)
    weather, room, kept = torch.tensor(0.0).double(), torch.zeros(8, dtype=torch.float64), []
    for change, outside in zip(changes, clear[:, None] * sun * gain, strict=True):
        weather = 0.97 * weather + change
        room = room + (weather + outside - room) / delay
        kept.append(room)
    return hours[:, None], with_noise(15 + torch.stack(kept), 0.05, generator)


def pipe(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two regimes: the velocity across a pipe, a parabola in calm flow and a power law in turbulent flow.

    Inputs are the logarithm of the Reynolds number, how disturbed the inlet is and how rough the wall is. The friction
    of turbulent flow is that of Haaland, and its inverse root is the exponent of the power law (Nunner).
    """
    X = inputs(n, 3, new_generator(seed))
    logarithm, critical, roughness = (
        each[:, None]
        for each in between(
            X, [(math.log(1e3), math.log(3e4)), (math.log(6e3), math.log(2e3)), (math.log(1e-4), math.log(3e-2))]
        )
    )
    places = grid(0, 0.98, 40)
    root = -1.8 * torch.log10((roughness.exp() / 3.7) ** 1.11 + 6.9 / logarithm.exp())
    turbulent = (root + 1) * (2 * root + 1) / (2 * root.square()) * (1 - places) ** (1 / root)
    share = torch.sigmoid((logarithm - critical) / 0.05)
    return X, (1 - share) * 2 * (1 - places.square()) + share * turbulent
