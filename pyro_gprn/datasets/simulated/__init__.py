"""Data sets that are made on this machine, by simulators and by draws from the network itself."""
