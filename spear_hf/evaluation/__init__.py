"""How good a method's predictions on a stream are, and the files, figures and page of a run."""
