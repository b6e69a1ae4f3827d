"""The limits of a machine, and the probe that measures them. Lesson 01."""
