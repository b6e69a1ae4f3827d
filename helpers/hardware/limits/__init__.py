"""The limits of a machine: what the probe finds, and how it measures them. Lesson 01."""
