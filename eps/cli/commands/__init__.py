"""The commands of ``eps``; each module is imported when one of its commands runs, so that ``eps --help`` is quick."""
