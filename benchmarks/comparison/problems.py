"""All problems: those to develop on, those held aside to judge what was developed, and those that are blind or unseen.

To judge honestly, do not look at results of the last three groups, nor at their equations, while you change the
package. The problems held aside have been looked at many times, and some choices were made with their results in mind.
The blind ones were written by someone who saw only what baselines do on them, and have been looked at since. So were
the unseen ones, on which the network was run for the first time late on 2026-11-19.
"""

from __future__ import annotations

import numpy as np

from comparison.problem import Problem, Simulator, Task, fill_holes, hide_blocks, new_runs
from comparison.published import dust_holes, jura, new_rows
from comparison.simulators import blind, blind_later, development, held_aside, unseen
from pyro_gprn.datasets import simulate_plume


def holes_in_series(name: str, simulate: Simulator, n_rows: int, n_blocks: int, length: int) -> Problem:
    """Several series over time, some of which are hidden for a while."""

    def make(split: int) -> Task:
        X, Y = (np.ascontiguousarray(array.numpy()) for array in simulate(n_rows, split))
        return fill_holes(X, Y, hide_blocks(Y.shape, n_blocks, length, split))

    return Problem(name, make)


DEVELOPMENT = (
    new_runs("heat", development.heat, 80, 20),
    new_runs("plume", simulate_plume, 80, 20),
    new_runs("fronts", development.coarse_fronts, 80, 20),
    new_runs("noisy blob", development.noisy_blob, 80, 20),
    new_runs("membrane", development.membrane, 100, 40),
    new_runs("pendulum", development.pendulum, 50, 50),
    new_runs("chirp", development.chirp, 60, 40),
    new_runs("fisher", development.fisher, 60, 40),
    new_runs("layer", development.layer, 30, 50),
    new_runs("borehole, 20 inputs", development.borehole, 120, 200, own_units=True),
    new_runs("sobol, 40 inputs", development.sobol, 200, 250, own_units=True),
    new_runs("circuit", development.circuit, 60, 200, own_units=True),
    holes_in_series("series with holes", development.series, 120, 4, 25),
    jura("jura, cadmium hidden", 0),
    new_rows("pm25", "pm25"),
    dust_holes("pm25 with holes", 50, 12),
)

HELD_ASIDE = (
    new_runs("rod", held_aside.rod, 60, 40),
    new_runs("shocks", held_aside.shocks, 100, 40),
    new_runs("interference", held_aside.interference, 80, 40),
    new_runs("noisy ring", held_aside.ring, 100, 40),
    new_runs("predators", held_aside.predators, 40, 50),
    new_runs("bell chirp", held_aside.bell_chirp, 60, 40),
    new_runs("gray-scott", held_aside.gray_scott, 70, 40),
    new_runs("stokes layer", held_aside.stokes, 35, 40),
    new_runs("friedman, 25 inputs", held_aside.friedman, 150, 200, own_units=True),
    new_runs("spill, 20 inputs", held_aside.spill, 120, 60),
    new_runs("robot arm", held_aside.robot_arm, 120, 250, own_units=True),
    holes_in_series("tides with holes", held_aside.tides, 100, 4, 20),
    jura("jura, nickel hidden", 1),
    new_rows("equity", "equity"),
    new_rows("gene expression", "precise", 128),
)

BLIND = (
    new_runs("plate", blind.plate, 60, 40),
    new_runs("flood", blind.flood, 80, 40),
    new_runs("ripples", blind.ripples, 80, 30),
    new_runs("bump", blind.bump, 50, 50),
    new_runs("wing", blind.wing, 100, 250, own_units=True),
    new_runs("reactor, 24 inputs", blind.reactor, 120, 250, own_units=True),
    new_runs("epidemic", blind.epidemic, 60, 50),
    new_runs("drawdown, 30 runs", blind.drawdown, 30, 50),
    holes_in_series("rooms with holes", blind.rooms, 144, 5, 30),
    new_runs("pipe", blind.pipe, 80, 100),
    new_runs("valve", blind_later.valve, 40, 50),
    new_runs("absorption", blind_later.absorption, 60, 60),
    new_runs("seepage, 30 runs", blind_later.seepage, 30, 50),
    new_runs("tower", blind_later.tower, 120, 50),
    new_runs("nose", blind_later.nose, 150, 200, own_units=True),
    new_runs("dosing, 15 inputs", blind_later.dosing, 100, 100),
    new_runs("echoes", blind_later.echoes, 100, 40),
    new_runs("truss", blind_later.truss, 200, 200, own_units=True),
)

UNSEEN = (
    new_runs("bearing, 40 runs", unseen.bearing, 40, 50),
    new_runs("queue", unseen.queue, 90, 40),
    new_runs("coating", unseen.coating, 100, 50),
    new_runs("voltammogram", unseen.voltammogram, 70, 60),
    new_runs("turbofan, 14 inputs", unseen.turbofan, 160, 200, own_units=True),
    new_runs("motor", unseen.motor, 60, 200, own_units=True),
    holes_in_series("mooring with holes", unseen.mooring, 160, 5, 30),
    new_runs("storm, 16 inputs", unseen.storm, 100, 60),
)
