"""The commands of ``eps``, one module for each family; imported when used, so that ``eps --help`` is quick."""
