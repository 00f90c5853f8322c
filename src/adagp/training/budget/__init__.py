"""Comparisons in which every method gets the same reference seconds, each at its own tuned learning rate.

`settings` says what is compared, `parts` lists the runs, `reference` measures what a batch costs, `work` trains what is
missing (several processes may share it), `outcome` reads the folder and `judge` compares the figures.
"""
