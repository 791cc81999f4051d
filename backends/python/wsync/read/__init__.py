"""Reads versions, folders and files as mappings of tensors, in host memory and on GPUs; chunks and layouts."""
