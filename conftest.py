"""What every run of pytest has: what is played when, and the seconds of each folder at its end."""

pytest_plugins = ("tests.tiers", "tests.summary")
