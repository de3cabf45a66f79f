"""Uploads of recorded steps to object storage, in a child process."""
