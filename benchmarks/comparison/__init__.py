"""The parts of the benchmark of accuracy: problems, methods, scores, the table of results and its summary."""
