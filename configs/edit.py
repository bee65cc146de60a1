"""`edit` of METHODS.md on the default target."""
from specjax.config import Decode


def get_config() -> Decode:
    """For ``python -m experiments.decode --config=configs/edit.py``; `experiments.edit` gives it the text that is edited."""
    return Decode(method="edit")
