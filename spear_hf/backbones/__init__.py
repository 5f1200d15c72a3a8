"""Base models: how they are built, where they came from, and which one an adapter belongs to."""
