"""One file an output: a report to text. Knows layout and nothing else."""
