"""Exercises: read and released, proved, and handed out in a clean tree."""
