"""What a process that marks needs, loaded once: each is forked from one that has it, and starts in
no time.
"""

from tools.grading import grade

grade.all_sheets()
