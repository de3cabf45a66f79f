"""The machine below: files, processes, memory, clocks, devices."""
