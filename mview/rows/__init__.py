"""Which rows are the same (`equality`) and where: hashes, matching, look-ups, sets of keys.

Beside it, rows that come part by part (`parts`).
"""
