"""Wing 2, offline: timeline, report and checks of a recorded run."""
