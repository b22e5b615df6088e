"""Golden replay: what the planner says today, number by number, and whether it still says so.

    record.py    a question or a plan to lines of text: every fact a line, every number in full
    golden.py    those lines beside the files in golden/, with old words replaced by new ones
    words.toml   the words that have changed since the files were written
    plans/       plan files as they were written before; they are read, or refused in a sentence

A search with a budget in proposals never looks at a clock, so all of it repeats to the last digit.
`make replay` compares everything, `make replay UPDATE=1` writes the files anew: a commit that does
so says which number has changed and why it is now right.
"""
