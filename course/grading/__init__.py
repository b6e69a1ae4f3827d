"""Grading that holds: submissions run in a sandbox and return data, hidden checks run outside of it.

``python -m course.grading SUBMISSIONS`` grades a folder. ``sandbox`` shuts a submission in, ``student`` is what runs
in there with it, ``session`` calls its functions from outside, ``marker`` marks one submission, ``intake`` reads what
was handed in, ``gradebook`` keeps the grades with nbgrader, ``grade`` does it for a class. The threat model stands in
course/instructor/instructor.md.
"""
