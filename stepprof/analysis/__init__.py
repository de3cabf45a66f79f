"""Read recorded runs offline: timeline, report and checks."""
