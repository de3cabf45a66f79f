"""The commands of `stepprof …`, one module each.

Each module has `add(parser)`, which declares the arguments, and `run(args)`, which runs the command
and returns the exit status.
"""
