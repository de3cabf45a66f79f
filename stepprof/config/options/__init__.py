"""Option tables of the configuration, one module per backend."""
