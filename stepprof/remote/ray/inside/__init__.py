"""The part that runs inside an actor."""
