"""What the training code calls: steps, regions, marks, counters and the state; light enough to stay in for good."""
