"""Commands that bring back what went wrong: rows, changes that cannot be taken, views."""
