"""One file a format: is this mine, and what does it say? Names as logged, nothing dropped in silence."""
