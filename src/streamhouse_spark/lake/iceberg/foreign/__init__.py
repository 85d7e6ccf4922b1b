"""Data files of other engines: their rows have no offsets, and are named by file and position."""
