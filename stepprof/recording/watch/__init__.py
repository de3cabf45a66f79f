"""Watches of the run itself: slow steps and ranks that fall behind."""
