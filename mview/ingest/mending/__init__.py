"""What comes right later: changes that cannot be taken, and chunks that are read anew."""
