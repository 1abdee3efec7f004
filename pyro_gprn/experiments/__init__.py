"""Experiments that anyone can run again, and the ``pyro-gprn`` command."""
