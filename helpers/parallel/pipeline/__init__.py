"""Pipeline parallelism: the orders of its stages, their schedules, and real stages on ranks.

Lesson 06.
"""
