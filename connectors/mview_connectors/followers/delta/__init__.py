"""Delta tables outside of the store as sinks: folders, S3, Azure, Google Cloud Storage."""
