"""Configurations: one file per method and per experiment, each with a `get_config()` that returns a frozen dataclass."""
