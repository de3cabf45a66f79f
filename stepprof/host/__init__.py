"""The machine: files, processes, memory, clocks, devices."""
