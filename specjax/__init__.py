"""specjax: speculative decoding in JAX, from pure pieces, proven lossless, measured against plain decoding in the same run.

>>> import specjax
>>> specjax.methods.get("plain").name
'plain'
"""
from specjax import methods
from specjax.api import Result, generate, score
from specjax.model import Model, load
from specjax.round import compose

__all__ = ["Model", "Result", "compose", "generate", "load", "methods", "score"]
__version__ = "0.1.0"
