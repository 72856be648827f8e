"""What messages of a changelog are written in: from bytes to changes of rows."""
