"""Adapters as values and files; nothing here knows a model."""
