"""A real Hadoop on this host, for tests and for trying things out: ``eps devcluster start``, ``stop``, ``status``.

:mod:`.settings` and :mod:`.sites` say what a cluster is, as values.  :mod:`.jars` finds Java and fetches Hadoop's jars.
:mod:`.lifecycle` starts and stops it.
"""
