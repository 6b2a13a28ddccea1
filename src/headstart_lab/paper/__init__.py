"""The founding paper's experiments on models at hand: tables 2 to 4, and the runs behind its figures 1 and 5."""
