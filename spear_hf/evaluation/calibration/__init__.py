"""Calibration: what a few hundred clean, unlabelled images say about a configuration, a guard and preprocessing."""

TRIED_ON = ("shot_noise", "defocus_blur", "snow", "brightness", "jpeg_compression")
"""The corruptions that values are tried on: of each group one or two, strong ones and mild ones."""

LEAST = 64
"""Clean images: with fewer, one more or less is more than what is chosen by."""
