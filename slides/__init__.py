"""Lecture slides: one offline HTML deck a lesson, cut from the cells of the lesson that carry a slide tag."""
