"""Other libraries that can read SPeaR adapters; each is imported only when it is asked for."""
