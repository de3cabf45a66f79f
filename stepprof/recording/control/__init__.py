"""Live control of a running session: requests that it accepts and the status that it publishes."""
