"""Drawings of memories, links and processors."""
