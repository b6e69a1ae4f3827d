"""Studies: one question each about a piece of hardware, modelled, measured and drawn. Lesson 02."""
