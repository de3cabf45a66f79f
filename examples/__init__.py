"""Runnable examples; they ship inside the wheel as `stepprof.examples`."""
