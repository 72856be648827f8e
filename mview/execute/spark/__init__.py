"""The Spark executor: look-ups and SQL as jobs, over files and copies of files on executors."""
