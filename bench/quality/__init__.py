"""How good nested weights are: against the float source, and against releases that were never nested."""
