"""Spark: its JVM, the session, and its errors as ours."""
