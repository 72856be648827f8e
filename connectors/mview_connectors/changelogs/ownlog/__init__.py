"""What the own logs of databases share, whatever server writes them."""
