"""`speculative_decoding` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/speculative_decoding.py``."""
    return Decode(method="speculative_decoding")
