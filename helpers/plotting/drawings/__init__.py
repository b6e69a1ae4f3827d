"""Drawings of the thing itself: ranks and what moves between them, kernels and memory, a loader."""
