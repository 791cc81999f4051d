"""libwsync by cffi, and what everything here uses of it: types, folders, devices, this node's agent and the command."""
