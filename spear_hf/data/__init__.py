"""Streams of corrupted images, as a deployed classifier receives them.

`load_stream` opens a source (sources/), decodes its images, corrupts them (corruptions/), prepares them for a model
(processor) and numbers their labels as the model does (labels).
"""
