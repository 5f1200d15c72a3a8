"""What a method's answers to a stream are worth, and the files and figures of a run."""
