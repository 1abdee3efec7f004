"""The training that every method shares: the loop, its checkpoints, ranges of hyperparameters, the choice of K."""
