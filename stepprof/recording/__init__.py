"""Wing 1, inside the training process: turns selected windows into captures, spans and manifest entries."""
