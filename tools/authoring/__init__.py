"""Builds the lessons from their sources and checks them; lecturers and maintainers use it, students
do not.
"""
