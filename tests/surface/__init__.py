"""The public surface: what users and their scripts rely on, and what has to stay when everything inside moves."""
