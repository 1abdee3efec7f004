"""What every model of this package has: inputs, kernels, noises, and hyperparameters that may have priors."""
