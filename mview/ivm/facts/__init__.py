"""What is known of the columns of a plan: keys, lineage, exact numbers, types of results."""
