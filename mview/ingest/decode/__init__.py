"""From messages to change batches, typed by their tables: many at once, or one by one."""
