"""The supervisor: the parent of all processes of a job, which end with it.

It imports what they need before it forks, so that a container starts in milliseconds.  It stays single threaded, so
that forking is safe.

``state`` makes the decisions and defines the messages between job master and supervisor; ``loop`` carries the decisions
out.  ``process`` is the code of a forked process before its entry function; ``start`` is the client's side.
"""
