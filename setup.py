"""Packaging: `pip install -e .` for users, `pip install -e ".[test]"` for developers."""
import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'__version__ = "(.+)"', Path(__file__).with_name("specjax").joinpath("__init__.py").read_text()).group(1)

GRAMMAR = ["outlines-core>=0.2.11"]
SERVE = ["starlette>=0.40", "uvicorn>=0.30", "pydantic>=2.7"]

setup(
    name="specjax",
    version=VERSION,
    description="Speculative decoding in JAX: pure pieces, proven lossless, measured against plain decoding in the same run",
    python_requires=">=3.11",
    packages=find_packages(include=["specjax*", "experiments*", "configs*"]),
    package_data={"specjax.data": ["*.jsonl"]},
    install_requires=[
        "jax>=0.10.2,<0.11", "flax>=0.12.8", "numpy>=2", "absl-py>=2", "gguf>=0.19", "safetensors>=0.5", "tokenizers>=0.21", "jinja2>=3.1",
        "tqdm>=4.66", "ml_dtypes>=0.5",
    ],
    extras_require={
        "test": ["pytest>=8", "pytest-xdist>=3", "ruff>=0.15", "hypothesis>=6", *SERVE, *GRAMMAR, "openai>=1.60"],
        "serve": SERVE,
        "grammar": GRAMMAR,
        "compare": ["torch>=2.13", "transformers>=4.57"],
        "train": ["optax>=0.2.8", "orbax-checkpoint>=0.11", "tensorflow-datasets>=4.9", "array_record", "importlib_resources"],
    },
)
