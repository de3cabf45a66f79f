"""The reward of the job: which share of an answer's characters has an even number. A model with random weights can learn that."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Return a score between 0 and 1."""
    return sum(ord(letter) % 2 == 0 for letter in solution_str) / max(1, len(solution_str))
