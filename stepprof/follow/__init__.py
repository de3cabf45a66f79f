"""`stepprof follow`: a process next to the job that uploads, runs a command and deletes old artifacts."""
