"""The commands of `stepprof …`, one module each: `add(parser)` says what it takes, `run(args)` does it and returns the exit status."""
