"""wsync: publishes a trainer's weights and reads them as files; see the README."""
from ._library import Error, Timeout

__all__ = ["Error", "Timeout"]
