"""`recursive` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/recursive.py``."""
    return Decode(method="recursive")
