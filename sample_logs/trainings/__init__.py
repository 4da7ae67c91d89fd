"""The small trainings behind the sample logs: data and models, writers, and the runs."""
