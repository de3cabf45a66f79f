"""Random and hostile input from outside: files of a run, and answers of servers."""
