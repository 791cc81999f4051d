"""Updates of inference engines: they load a path, or receive the weights over a process group."""
