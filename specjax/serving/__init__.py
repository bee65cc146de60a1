"""Serving: continuous batching over the same round that everything else uses, and an OpenAI-compatible HTTP endpoint."""
