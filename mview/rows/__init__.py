"""Which rows are the same (`equality`) and where: hashes, matching, look-ups, ranges, sets of keys.

Beside it, rows that come part by part (`parts`).
"""
