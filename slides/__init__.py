"""Lecture slides: one offline HTML deck a lesson, cut from the cells of the lesson that carry a
slide tag.

Of a marked markdown cell the heading and its first paragraph, list, table or figure stand on the
slide: tables are wanted for comparisons, and their words count. A quote, a block of code (show a
code cell, which has run) or anything else as the first block is refused. Times, rates, percentages
and speedups are refused in a slide's text, formulas and code comments, for they vary from machine
to machine: a slide shows them as the notebook's own output.
"""
