"""What comes from outside, at random and hostile: files of a run, answers of servers."""
