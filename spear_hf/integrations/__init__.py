"""Other libraries that can load SPeaR adapters; each integration is imported only when it is used."""
