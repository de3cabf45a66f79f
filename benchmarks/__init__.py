"""What stepprof costs, side by side with its peers, measured on the machine at hand: ``python -m benchmarks``.

Nothing here is imported by the package, and no test asserts a time: a figure belongs to a machine, a verdict to whoever reads it.
"""
