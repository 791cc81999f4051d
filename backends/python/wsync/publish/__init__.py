"""Publishes a trainer's parameters; describes the tensors that a rank holds under each framework."""
