"""A real Hadoop on this host, for tests and for trying things out: ``eps devcluster start``, ``stop``, ``status``.

:mod:`.settings` and :mod:`.sites` describe a cluster, as values.  :mod:`.jars` finds Java and downloads Hadoop's jars.
:mod:`.lifecycle` starts and stops it.
"""
