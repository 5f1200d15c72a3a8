"""Base models: how to build one, where it came from, and a fingerprint that tells which one it is."""
