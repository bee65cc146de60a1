"""`early_exit` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/early_exit.py``."""
    return Decode(method="early_exit")
