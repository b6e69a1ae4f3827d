"""Drawings of products and their tiles."""
