"""Data sets that are made here: by simulators of three sizes, and by draws from the network itself."""
