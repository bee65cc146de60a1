"""`multi_candidate` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/multi_candidate.py``."""
    return Decode(method="multi_candidate")
