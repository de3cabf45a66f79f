"""The torch backend: torch.profiler."""
