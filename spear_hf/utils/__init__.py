"""Helpers that every other package of spear_hf may use."""
