"""`model_tree` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/model_tree.py``."""
    return Decode(method="model_tree")
