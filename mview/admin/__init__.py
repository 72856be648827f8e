"""What is asked of a store, or done to it, beside a run: status, content, verify, repair, drop."""
