"""A campaign of faults over the real fan-out code: simulated engines do what engines should not, and what must hold is looked at."""
