"""Calibration: what a few hundred clean, unlabelled images say about a configuration, a guard and preprocessing."""

TRIED_ON = ("shot_noise", "defocus_blur", "snow", "brightness", "jpeg_compression")
"""The corruptions that values are tried on: of each group one or two, strong ones and mild ones."""
