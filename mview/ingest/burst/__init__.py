"""Who reads where many changes wait: a process beside this one, and workers of Spark."""
