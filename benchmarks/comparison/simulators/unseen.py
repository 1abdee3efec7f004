"""Simulators of the unseen problems: they were written when those in blind_later.py had been looked at, too.

Who wrote them saw only baselines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from comparison.simulators.tools import between, grid, inputs, new_generator, with_noise


def bearing(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: the pressure of the oil under a pad that slides (Reynolds), in sines (Galerkin).

    Inputs are how much the pad is tilted along and across its way, how far it is crowned, the ratio of its sides and
    how fast the gap closes. The pressure at the edges is zero.
    """
    X = inputs(n, 5, new_generator(seed))
    tilt, roll, crown, ratio, closing = (
        each[:, None, None] for each in between(X, [(0.4, 2.0), (-0.5, 0.5), (0.0, 0.5), (0.5, 1.5), (-0.2, 0.6)])
    )
    n_points, shown = 40, grid(0.02, 0.98, 28)
    points = (torch.arange(n_points, dtype=torch.float64) + 0.5) / n_points
    along, across = points[:, None], points
    gap = 1 + tilt * (1 - along) + roll * (across - 0.5) + crown * (2 * along - 1).square()
    number = math.pi * torch.arange(1, 13, dtype=torch.float64)[:, None]
    sines, slopes = torch.sin(number * points), number * torch.cos(number * points)

    def product(of_along: Tensor, of_across: Tensor) -> Tensor:
        """Each function of the place along times each of the place across, at all points, ``(144, 1600)``."""
        return torch.einsum("ax,by->abxy", of_along, of_across).reshape(len(number) ** 2, n_points**2)

    height, along_slopes, across_slopes = gap.reshape(n, -1), product(slopes, sines), product(sines, slopes)
    ease = height[:, None].pow(3)
    stiffness = (along_slopes * ease) @ along_slopes.T + ratio.square() * (across_slopes * ease) @ across_slopes.T
    push = height @ along_slopes.T + closing[:, 0] * product(sines, sines).sum(1)
    weights = torch.linalg.solve(stiffness, push).reshape(n, len(number), len(number))
    sines = torch.sin(number * shown)
    return X, torch.einsum("nab,ax,by->nxy", weights, sines, sines)


def queue(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sharp edges that move: cars for each metre of a road while a light is red and after it (cell transmission).

    Inputs are the cars that come each second, when the light turns red and for how long, the speed of a free car and
    the speed at which a jam dissolves. The density is kept at 60 places and 40 times.
    """
    X = inputs(n, 5, new_generator(seed))
    demand, start, red, speed, dissolving = (
        each[:, None] for each in between(X, [(0.2, 0.4), (10.0, 60.0), (40.0, 90.0), (12.0, 18.0), (4.0, 6.0)])
    )
    jam, length, step, n_cells, light = 0.14, 10.0, 0.5, 120, 90
    most = jam * speed * dissolving / (speed + dissolving)
    density = (demand / speed).expand(n, n_cells)
    kept = []
    for number in range(1, 481):
        time = number * step
        is_red = (time > start) & (time < start + red)
        wanted = torch.minimum(speed * density, most)
        room = torch.minimum(dissolving * (jam - density), most)
        flow = torch.cat([torch.minimum(demand, room[:, :1]), torch.minimum(wanted[:, :-1], room[:, 1:])], dim=1)
        flow = torch.cat([flow, wanted[:, -1:]], dim=1)
        flow[:, light] = torch.where(is_red[:, 0], 0.0, flow[:, light])
        density = density + step / length * (flow[:, :-1] - flow[:, 1:])
        if number % 12 == 0:
            kept.append(density[:, ::2])
    return X, torch.stack(kept, dim=1)


def coating(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Interference: the share of light that three films on glass reflect, at 8 angles and 100 wave lengths.

    Inputs are the thicknesses of the films in nanometres and the refractive indices of the first and third film and
    of the second film. The electric field is parallel to the films; the matrices are those of Abelès.
    """
    X = inputs(n, 5, new_generator(seed))
    first, second, third, high, low = (
        each[:, None, None]
        for each in between(X, [(80.0, 140.0), (250.0, 330.0), (80.0, 140.0), (2.0, 2.4), (1.38, 1.5)])
    )
    angles, lengths = torch.deg2rad(grid(0, 70, 8))[:, None], grid(450, 850, 100)

    def slant(index: Tensor) -> Tensor:
        """The index times the cosine of the angle within the film."""
        return (index.square() - torch.sin(angles).square()).sqrt()

    into = torch.cos(angles)
    electric = torch.ones(n, len(angles), len(lengths), dtype=torch.complex128)
    magnetic = slant(torch.tensor(1.52).double()) * electric
    for thickness, index in ((third, high), (second, low), (first, high)):
        leaning = slant(index)
        phase = 2 * math.pi * leaning * thickness / lengths
        electric, magnetic = (
            torch.cos(phase) * electric + 1j * torch.sin(phase) / leaning * magnetic,
            1j * leaning * torch.sin(phase) * electric + torch.cos(phase) * magnetic,
        )
    reflected = (into * electric - magnetic) / (into * electric + magnetic)
    return X, reflected.abs().square()


def voltammogram(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy curves: the current at 240 potentials while an electrode is swept down and up again (Nicholson, Shain).

    Inputs are the logarithm of the rate at the electrode, the share of the potential that drives it (Butler, Volmer),
    its standard potential, the rate of the sweep, the logarithm of how fast the product decays, and the concentration.
    Bubbles form on the electrode: from first to last point the noise grows from 1 % to 30 % of what currents vary.
    """
    generator = new_generator(seed)
    X = inputs(n, 6, generator)
    logarithm, share, standard, sweep, decay, amount = between(
        X, [(-1.5, 1.5), (0.35, 0.65), (-2.0, 2.0), (0.5, 2.0), (-5.0, 0.0), (0.6, 1.4)]
    )
    # Potentials are in units of RT/F and so is time; the diffusivity is one.
    n_steps, lowest = 480, -10.0
    step = 4 * -lowest / n_steps
    potential = (grid(0, 4 * -lowest, n_steps + 1)[1:] + 2 * lowest).abs() + lowest
    rate, lost = logarithm.exp() / sweep.sqrt(), decay.exp() / sweep
    since = step * torch.arange(n_steps + 1, dtype=torch.float64)
    # What a flux of one during one step takes from, or leaves of, the concentration at the electrode later on
    taken = (2 * (since / math.pi).sqrt()).diff().expand(n, n_steps)
    left = (torch.erf((lost[:, None] * since).sqrt()) / lost.sqrt()[:, None]).diff(dim=1)
    flux = torch.zeros(n, n_steps, dtype=torch.float64)
    for number in range(n_steps):
        offset = potential[number] - standard
        forth, back = rate * torch.exp(-share * offset), rate * torch.exp((1 - share) * offset)
        past = flux[:, :number].flip(1)
        before = 1 - (taken[:, 1 : number + 1] * past).sum(1)
        product = (left[:, 1 : number + 1] * past).sum(1)
        flux[:, number] = (forth * before - back * product) / (1 + forth * taken[:, 0] + back * left[:, 0])
    charging = 0.05 * torch.where(torch.arange(n_steps) < n_steps // 2, 1.0, -1.0)
    current = (amount * sweep.sqrt())[:, None] * flux + sweep[:, None] * charging
    current = current[:, 1::2]
    noise = current.std() * grid(math.log(0.01), math.log(0.3), n_steps // 2).exp()
    return X, current + noise * torch.randn(current.shape, generator=generator, dtype=current.dtype)


def turbofan(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A jet engine with a fan at cruise: seven outputs in their own units, from its cycle.

    They are the thrust for each kilogram of air, the fuel for each newton, the temperature and pressure behind the
    turbines, the speeds of both jets and the nitrogen oxides. All of the 14 inputs matter: altitude, Mach number,
    bypass, the pressure ratios of fan and compressor, the temperature before the turbines, five efficiencies, the
    losses of pressure in the inlet and the burner, and the air that is bled.
    """
    X = inputs(n, 14, new_generator(seed))
    altitude, mach, bypass, fan_ratio, ratio, hottest, *shares = between(
        X,
        [
            (8.0, 11.0),
            (0.7, 0.85),
            (3.5, 5.5),
            (1.45, 1.7),
            (14.0, 22.0),
            (1500.0, 1700.0),
            (0.86, 0.93),
            (0.84, 0.90),
            (0.86, 0.92),
            (0.87, 0.93),
            (0.96, 1.0),
            (0.0, 0.04),
            (0.02, 0.08),
            (0.0, 0.1),
        ],
    )
    of_fan, of_compressor, of_turbine, of_low_turbine, of_burner, inlet_loss, burner_loss, bled = shares
    cold, hot, heating = 1005.0, 1148.0, 43e6  # heat capacities of air and gas, heat of the fuel
    outside = 288.15 - 6.5 * altitude
    around = 101325 * (outside / 288.15) ** 5.256
    warming = 1 + 0.2 * mach.square()
    at_inlet, inlet_pressure = outside * warming, (1 - inlet_loss) * around * warming**3.5
    after_fan = at_inlet * (1 + (fan_ratio ** (1 / 3.5) - 1) / of_fan)
    fan_pressure = inlet_pressure * fan_ratio
    compressed = after_fan * (1 + (ratio ** (1 / 3.5) - 1) / of_compressor)
    pressure = fan_pressure * ratio
    fuel = (1 - bled) * (hot * hottest - cold * compressed) / (of_burner * heating - hot * hottest)
    gas = 1 - bled + fuel
    # The first turbine drives the compressor, the second one the fan.
    between_turbines = hottest - cold * (compressed - after_fan) / (gas * hot)
    exhaust = between_turbines - cold * (1 + bypass) * (after_fan - at_inlet) / (gas * hot)
    left = (1 - (1 - between_turbines / hottest) / of_turbine) * (1 - (1 - exhaust / between_turbines) / of_low_turbine)
    last_pressure = pressure * (1 - burner_loss) * left**4
    jet = (2 * hot * exhaust * (1 - (around / last_pressure) ** 0.25)).sqrt()
    fan_jet = (2 * cold * after_fan * (1 - (around / fan_pressure) ** (1 / 3.5))).sqrt()
    flight = mach * (1.4 * 287 * outside).sqrt()
    thrust = (gas * jet + bypass * fan_jet) / (1 + bypass) - flight
    oxides = 32 * (pressure / 3e6) ** 0.4 * torch.exp((compressed - 826) / 194.4)
    consumption = 1e6 * fuel / ((1 + bypass) * thrust)
    return X, torch.stack([thrust, consumption, exhaust, last_pressure, jet, fan_jet, oxides], dim=1)


def motor(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The map of an electric car's motor: the current that weakens its field, its efficiency and its heat.

    Inputs are the speed, the torque, the voltage of the battery and the temperature of the coils. Where the voltage is
    enough the first output is zero, and it falls steeply beyond an edge. The noise is 1 % of what each output varies.
    """
    generator = new_generator(seed)
    X = inputs(n, 4, generator)
    turns, torque, battery, temperature = between(X, [(1500.0, 9000.0), (10.0, 90.0), (280.0, 400.0), (20.0, 140.0)])
    n_pairs, inductance = 4, 0.15e-3
    magnet = 0.08 * (1 - 1e-3 * (temperature - 20))
    resistance = 0.015 * (1 + 3.9e-3 * (temperature - 20))
    turning = 2 * math.pi * turns / 60
    frequency = n_pairs * turning
    driving = torque / (1.5 * n_pairs * magnet)
    # The flux in the coils times the frequency must not exceed the voltage.
    allowed = (battery / math.sqrt(3) / frequency).square() - (inductance * driving).square()
    weakening = ((allowed.sqrt() - magnet) / inductance).clamp(max=0)
    flux = ((magnet + inductance * weakening).square() + (inductance * driving).square()).sqrt()
    copper = 1.5 * resistance * (driving.square() + weakening.square())
    iron = 25 * (frequency * flux / 100) ** 1.6 * (frequency / 1000) ** 0.2
    heat = copper + iron + 1e-3 * turning.square()
    Y = torch.stack([weakening, 1 - heat / (heat + torque * turning), heat / 1000], dim=1)
    return X, Y + 0.01 * Y.std(0) * torch.randn(Y.shape, generator=generator, dtype=Y.dtype)


def mooring(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The noisy temperature of the sea each hour at eight depths, between which it falls steeply.

    The tide and slow random motions lift and lower the water, and stretch and squeeze its warm layer. The sun warms
    the uppermost metres each day.
    """
    generator = new_generator(seed)
    hours = torch.arange(n, dtype=torch.float64)
    depths = torch.tensor([15.0, 30, 42, 54, 66, 80, 95, 115]).double()
    changes = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    slowness = torch.exp(-1 / torch.tensor([18.0, 30.0, 40.0]).double())  # of motions that last so many hours
    state, motions = torch.randn(3, generator=generator, dtype=torch.float64), []
    for change in changes:
        state = slowness * state + (1 - slowness.square()).sqrt() * change
        motions.append(state)
    lift, stretch, strength = torch.stack(motions, dim=1)[..., None]
    phase = 2 * math.pi * torch.rand((), generator=generator, dtype=torch.float64)
    tide = (10 + 4 * strength) * torch.sin(2 * math.pi * hours[:, None] / 12.42 + phase)
    width = 30 * torch.exp(0.3 * stretch)
    steepest = 65 + tide + 10 * lift
    day = torch.cos(2 * math.pi * (hours[:, None] - 15) / 24)
    Y = 13 + 5 * torch.tanh((steepest - depths) / width) + 0.4 * torch.exp(-depths / 15) * (day + strength)
    return hours[:, None], with_noise(Y, 0.02, generator)


def storm(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """How much water leaves a valley after a storm, at 3 gauges and 60 times; of 16 inputs five matter.

    They are the rain, when it falls and for how long, the curve number of the ground, which tells what seeps away
    (SCS), and how long water stays in a stretch of the river (Nash). Three more matter little: the flow before the
    storm, the share of what the ground can hold that never runs off, and what is lost on the way.
    """
    X = inputs(n, 16, new_generator(seed))
    rain, centre, spread, curve, stay, base, first_share, lost = (
        each[:, None]
        for each in between(
            X,
            [
                (40.0, 110.0),
                (4.0, 9.0),
                (0.7, 2.5),
                (65.0, 90.0),
                (1.0, 3.5),
                (0.1, 0.2),
                (0.18, 0.22),
                (0.0, 0.03),
            ],
        )
    )
    n_steps, every = 600, 10
    times = grid(0, 30, n_steps + 1)
    fallen = rain * torch.special.ndtr((times - centre) / spread)
    held = 25.4 * (1000 / curve - 10)
    above = (fallen - first_share * held).clamp(min=0)
    running = (above.square() / (above + held)).diff(dim=1) * n_steps / 30
    # What leaves a stretch is what is in it divided by how long it stays.
    remains = torch.exp(-30 / n_steps / stay)
    flow, kept = base.expand(n, 3), []
    for number, entering in enumerate(running.T[..., None], 1):
        upstream = torch.cat([base + entering, (1 - lost) * flow[:, :-1]], dim=1)
        flow = remains * flow + (1 - remains) * upstream
        if number % every == 0:
            kept.append(flow)
    return X, torch.stack(kept, dim=2)
