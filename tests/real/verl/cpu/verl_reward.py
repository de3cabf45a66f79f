"""Compute the reward of the job: the share of characters with an even code in an answer. A model
with random weights can learn it.
"""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Return a score between 0 and 1."""
    return sum(ord(letter) % 2 == 0 for letter in solution_str) / max(1, len(solution_str))
