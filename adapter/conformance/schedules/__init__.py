"""Seeded random schedules: what engines are asked, how they are compared and what may not be left.

``draw`` makes a schedule from a seed, ``subject`` is an engine under test in whatever processes it
runs, ``reference`` knows the answers of an engine without a cache, ``play`` runs the one against
the other, ``leaks`` says what is left behind, ``setups`` builds the engines of a combination.
"""
