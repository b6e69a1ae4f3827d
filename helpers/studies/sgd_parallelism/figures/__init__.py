"""Drawings of schedules and results."""
