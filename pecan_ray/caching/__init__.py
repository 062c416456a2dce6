"""Entries on disk: what the cache keeps, in files that any number of processes share; all else in `cache/` is pure."""
