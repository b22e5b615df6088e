"""HTML report: one file that opens offline. Enters: what a search answered, its decisions, the
simulation of its best plan. Leaves: text; every figure in it is predicted.

    `page`        puts the sections, their data, our scripts and the vendored library together
    a module      for each section: words and tables as markup, and data for its chart
    *.js, *.css   what draws the data; they know nothing of plans
"""
