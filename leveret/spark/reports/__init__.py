"""Reports to look at: one HTML page each, with charts, that needs nothing else.

    page     what a report consists of, and the page made of it
    charts   positions of columns, ticks and lines, computed from numbers
    texts    numbers, sizes and names as people read them

Names of queues, users and routing keys are foreign text: templates escape everything, the page
allows no script, and characters that are not seen are replaced.
"""
