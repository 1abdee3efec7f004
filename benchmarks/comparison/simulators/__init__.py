"""Simulators. Each takes a number of runs n and a seed, and returns inputs ``(n, P)`` and outputs ``(n, …)``."""
