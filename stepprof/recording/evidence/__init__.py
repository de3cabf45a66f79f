"""What a recorded window shows besides the profiler's trace: garbage collections, stacks, CPU times."""
