"""Adapters as values and files: an AdapterConfig and {name: tensor}, on disk and on the Hub, without a model."""
