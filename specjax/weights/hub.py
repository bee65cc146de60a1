"""Checkpoints by hub id ("organisation/name"), where the optional `huggingface_hub` is installed."""
from __future__ import annotations

from specjax.weights.checkpoint import Checkpoint, CheckpointError

_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",  # small; tells a sharded checkpoint from one without weights
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def open_hub(repository: str) -> Checkpoint:
    """Fetch the needed files of a hub repository into the hub's own cache, and open them as a folder.

    Args:
      repository: "organisation/name".

    Returns:
      The checkpoint.

    Raises:
      CheckpointError: `huggingface_hub` is not installed, or the repository cannot be fetched or used.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        message = f"{repository!r} is no folder here; to fetch it as a hub id, run: pip install huggingface_hub"
        raise CheckpointError(message) from error
    from specjax.weights.safetensors_folder import open_folder

    try:
        folder = huggingface_hub.snapshot_download(repository, allow_patterns=list(_FILES))
    except Exception as error:  # the hub's client raises those of its network libraries too
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{repository!r} is no folder here, and the hub gave none: {reason}") from error
    return open_folder(folder, repository)
