"""The smallest process of a job, which owns all others: nothing outlives it, and it forks them from a warm image.

It imports what they need before it forks, so that a container starts in milliseconds, and it stays single threaded, so
that forking is safe.  ``state`` decides, also what the job master and the supervisor say to each other; ``loop`` acts;
``process`` is what a forked process is told and does before its entry function; ``start`` is the client's side.

Source: design section 7.
"""
