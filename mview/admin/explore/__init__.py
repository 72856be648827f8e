"""What a store tells of its past, and why it is as late as it is."""
