"""The checks of `stepprof doctor`: what this machine can record, with a remedy for each problem."""
