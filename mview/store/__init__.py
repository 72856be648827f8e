"""What mview keeps on disk: mirrors, manifests, the intent of an epoch, and the lease."""
