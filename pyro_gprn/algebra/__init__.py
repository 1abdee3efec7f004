"""Linear algebra and distributions with Kronecker-factored covariances. Nothing here knows of networks or data."""
