"""Batches: a file of rows through a program, to a file of results that survives a kill."""
