"""Source databases: read once, in primary-key chunks, as Arrow batches.

Value forms that the change formats share, so that a row is equal from both paths: times are text
`[-]HH:MM:SS[.f]` with no zeros at the end of the fraction; bit(1) is boolean, longer bit strings
are binary, most significant byte first; uuid, enum, set and json are the database's own text.
Types whose changelog form cannot equal the form in SQL are refused by `describe`.
"""
