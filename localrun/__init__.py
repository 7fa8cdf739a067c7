"""localrun's daemon, its runner processes, and what they share.

Import-free, since every process starts here.
"""

__version__ = "0.1.0"
