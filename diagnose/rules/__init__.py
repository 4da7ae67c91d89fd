"""One file a diagnosis: asks the case for findings, compares times, phrases. Computes nothing."""
