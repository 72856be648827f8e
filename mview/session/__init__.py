"""Spark: its Java, its jars, its JVM, the session, and its errors as ours."""
