"""What all kinds of engines share: targets, windows over many engines, ownership, manifest entries."""
