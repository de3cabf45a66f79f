"""Recording, inside the training process: turn selected windows into captures, spans and manifest entries."""
