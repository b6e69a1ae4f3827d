"""What runs in the sandbox, beside the student's own code: nothing in here is secret, or trusted
from outside.
"""
