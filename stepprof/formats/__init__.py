"""File formats of the profilers: read, checked and rewritten."""
