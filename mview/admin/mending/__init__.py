"""What makes tables and views right again that others have changed."""
