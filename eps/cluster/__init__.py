"""Where containers come from: one interface, one contract suite (``tests/contract``), several backends."""
