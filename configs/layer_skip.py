"""`layer_skip` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/layer_skip.py``."""
    return Decode(method="layer_skip")
