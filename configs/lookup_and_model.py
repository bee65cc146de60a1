"""`lookup_and_model` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/lookup_and_model.py``."""
    return Decode(method="lookup_and_model")
