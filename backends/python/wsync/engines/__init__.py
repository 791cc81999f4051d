"""Engines told to load a path, or sent the weights over a process group of their own."""
