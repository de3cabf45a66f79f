"""Run random faults over the real fan-out code: simulated engines misbehave, and the invariants are
checked.
"""
