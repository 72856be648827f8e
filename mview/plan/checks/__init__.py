"""What a view is refused for before it runs: not allowed, without sense, not the same each time."""
