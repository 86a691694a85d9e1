"""A real Hadoop on this host, for tests and for trying things out: ``eps devcluster``.

Values first: :mod:`.settings`, :mod:`.places`, :mod:`.sites`, :mod:`.daemons` and :mod:`.pom` say what a cluster is,
and ask nothing of the outside.  :mod:`.java`, :mod:`.maven`, :mod:`.jars`, :mod:`.ports`, :mod:`.preflight`,
:mod:`.processes`, :mod:`.probe`, :mod:`.record`, :mod:`.cluster` and :mod:`.lifecycle` act.
"""
