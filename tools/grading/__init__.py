"""Grading that holds: submissions run in a sandbox and return data, hidden checks run outside of
it.

``python -m tools.grading SUBMISSIONS`` grades a folder. ``sandbox`` shuts a submission in,
``student`` is what runs in there with it, ``session`` calls its functions from outside, ``outputs``
takes what its cells show, ``marker`` marks one submission. ``lms`` reads what Canvas and Moodle
pack, ``intake`` what was handed in; ``gradebook`` keeps the grades with nbgrader, ``page`` is a
student's, ``table`` writes grades.csv, ``grade`` does it for a class. The threat model stands in
course/instructor/instructor.md.
"""
