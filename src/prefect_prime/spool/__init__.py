"""Records on disk until the platform has them."""
