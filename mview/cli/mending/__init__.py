"""Commands for tables whose rows are read anew, or whose changes cannot be taken."""
