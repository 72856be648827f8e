"""Files: forced to the disk, private, marked as ours, fenced, and read as people's text."""
