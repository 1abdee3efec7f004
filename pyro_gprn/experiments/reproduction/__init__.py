"""The paper's experiments, to be run again: its Table 1, Figure 1 and Figure 2 (``pyro-gprn reproduce``)."""
