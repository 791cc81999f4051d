"""Versions, folders and files as mappings of tensors, on the host and on GPUs; the order and layout of what is read."""
