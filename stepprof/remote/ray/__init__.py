"""Ray actors as engines and ranks."""
