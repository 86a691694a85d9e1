"""The smallest process of a job, which owns all others: nothing outlives it, and it forks them from a warm image.  L3.

It imports what they need before it forks, so that a container starts in milliseconds, and it stays single threaded, so
that forking is safe.  ``state`` decides, ``loop`` acts, ``child`` is what a forked process does before its entry
function, ``protocol`` is what the job master and the supervisor say to each other, ``start`` is the client's side.

Source: design section 7.
"""
