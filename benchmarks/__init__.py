"""Measure what stepprof costs, side by side with its peers, on this machine: ``python -m
benchmarks``. The package imports nothing from here, and no test asserts a time: figures belong to a
machine.
"""
