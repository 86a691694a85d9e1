"""Resource backends, which provide containers: one interface, one contract suite (``tests/contract``)."""
