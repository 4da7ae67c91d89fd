"""One file a shape: arrays in, findings out. No path, no meaning of a metric, no rule."""
