"""What runs in the side environment, beside pypaimon: it imports nothing of mview."""
